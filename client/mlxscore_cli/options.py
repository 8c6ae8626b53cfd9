"""Flags that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

_SERVER = "Server"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        rich_help_panel=_SERVER,
        help="Where the server is. Default: MLXSCORE_BASE_URL, else http://127.0.0.1:8000.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        rich_help_panel=_SERVER,
        help="Default: MLXSCORE_API_KEY, which other users of this machine cannot read.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        rich_help_panel=_SERVER,
        help="Start a server of your own for this command: a folder or hub id that mlx-lm loads, or "
        "'default'. Needs mlxscore\\[server].",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON to standard output.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="OUT", help="Where results go, one line each.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where an interrupted run of the same input stopped.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin anew where OUT exists.")]
