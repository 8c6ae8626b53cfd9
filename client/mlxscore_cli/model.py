"""`mlxscore model`."""

import importlib.util
from pathlib import Path
from typing import Any

from mlxscore_cli.options import ApiKey, AsJson, Model, Url
from mlxscore_cli.service import connected
from mlxscore_cli.terminal import print_json, printable, stdout, table
from mlxscore_client import MlxscoreError, ModelCard

EXAMPLES = r"""
mlxscore model
mlxscore model --json
"""


def model(
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    model: Model = None,
) -> None:
    """What the server's model is and can do, and where the default model lies on this machine."""
    folder = _default_folder()
    card: ModelCard | None = None
    unreachable: MlxscoreError | None = None
    try:
        with connected(url, api_key, model) as client:
            card = client.models().data[0]
    except MlxscoreError as error:
        # Where the default model lies can be told without a server.
        unreachable = error
    if as_json:
        print_json(
            {
                "model": card and card.model_dump(mode="json"),
                "default_model": folder and {"folder": str(folder), "is_there": folder.is_dir()},
            }
        )
    else:
        rows: list[tuple[str, str]] = [] if card is None else _rows(card)
        stdout().print(table(["field", "value"], [*rows, ("default model", _told(folder))], left=2))
    if unreachable is not None:
        raise unreachable


def _rows(card: ModelCard) -> list[tuple[str, str]]:
    fields: dict[str, Any] = card.model_dump(mode="json", exclude={"object", "self_check"})
    check = card.self_check
    fields["layout"] = f"{check.layout} (within {check.max_error:.1e} nats of single rows)"
    return [
        (name.replace("_", " "), printable(_value(value)))
        for name, value in fields.items()
        if name != "created"
    ]


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _default_folder() -> Path | None:
    """Where the default model is kept, or will be; None without the server's package."""
    if importlib.util.find_spec("mlxscore_server") is None:
        return None
    try:
        from mlxscore_server.default_model import DEFAULT_MODEL_NAME
        from mlxscore_server.settings import Settings
    except ImportError:  # the package without what its extra brings
        return None
    return Settings().cache_dir / DEFAULT_MODEL_NAME


def _told(folder: Path | None) -> str:
    if folder is None:
        return "- (the server is not installed)"
    return f"{folder}{'' if folder.is_dir() else ' (not made yet)'}"
