"""What an install of the client alone needs, and the names that it promises."""

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import mlxscore_client
from mlxscore_client import AsyncClient, Client, MlxscoreError, version

ROOT = Path(__file__).parents[1]

NOT_THE_CLIENT_S = (
    "mlx",
    "mlx.core",
    "mlx_lm",
    "fastapi",
    "starlette",
    "uvicorn",
    "numpy",
    "transformers",
    "tokenizers",
    "pydantic_settings",
    "mlxscore_server",
    "mlxscore_cli",
    "typer",
    "rich",
)


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_client_works_where_only_httpx_and_pydantic_are() -> None:
    # A None in sys.modules makes the import of that name fail, as if it were not installed.
    said = python(
        f"import sys\n"
        f"for name in {NOT_THE_CLIENT_S!r}: sys.modules[name] = None\n"
        "import httpx, mlxscore_client\n"
        "answer = lambda request: httpx.Response(200, json={'status': 'ok'})\n"
        "with mlxscore_client.Client(transport=httpx.MockTransport(answer)) as client:\n"
        "    print(client.health().status)\n"
    )
    assert said == "ok"


def test_importing_makes_no_client_and_reads_no_settings() -> None:
    said = python(
        "import os, socket\n"
        "os.environ['MLXSCORE_BASE_URL'] = 'no url at all'\n"
        "def connect(*_): raise AssertionError('the import opened a connection')\n"
        "socket.socket.connect = connect\n"
        "import mlxscore_client\n"
        "made = [n for n in mlxscore_client.__all__\n"
        "        if type(getattr(mlxscore_client, n)).__name__.endswith('Client')]\n"
        "print(made)\n"
    )
    assert said == "[]"


def test_the_public_names() -> None:
    """A name that is added, renamed or lost is a decision, not an accident."""
    assert sorted(mlxscore_client.__all__) == [
        "APIConnectionError",
        "APIStatusError",
        "APITimeoutError",
        "AsyncClient",
        "AuthenticationError",
        "BadRequestError",
        "Classification",
        "Client",
        "DPOLogps",
        "Health",
        "InternalServerError",
        "InvalidRequestError",
        "InvalidResponseError",
        "MlxscoreError",
        "ModelCard",
        "ModelList",
        "NotFoundError",
        "PMI",
        "PayloadTooLargeError",
        "Perplexity",
        "Ranked",
        "RateLimitError",
        "Score",
        "ScoreItem",
        "ScoreResponse",
        "ScoreResult",
        "ServerUnavailableError",
        "StreamResult",
        "Surprisal",
        "TokenScore",
        "TokenSurprisal",
        "TopLogprob",
        "Usage",
        "WordSurprisal",
        "__version__",
    ]
    for name in mlxscore_client.__all__:
        assert hasattr(mlxscore_client, name)


def test_every_error_of_ours_is_public_and_drawn_in_the_tree() -> None:
    def below(error: type[Exception]) -> set[type[Exception]]:
        return {error}.union(*(below(child) for child in error.__subclasses__()))

    from mlxscore_client import errors

    ours = {e for e in below(MlxscoreError) if e.__module__.startswith("mlxscore_client")}
    assert len(ours) == 13
    for error in ours:
        assert getattr(mlxscore_client, error.__name__) is error
        assert error.__name__ in (errors.__doc__ or "")


def methods(client: type) -> dict[str, str]:
    """Public methods, and their parameters; how the two clients are closed differs by design."""
    found = inspect.getmembers(client, inspect.isfunction)
    return {
        name: str(inspect.signature(method).replace(return_annotation=inspect.Signature.empty))
        for name, method in found
        if not name.startswith("_") and name not in ("close", "aclose")
    }


def test_the_async_client_has_the_sync_client_s_methods_and_options() -> None:
    plain, awaited = methods(Client), methods(AsyncClient)
    # Iterators of the two kinds, in and out; all else of it is the same.
    streams = [inspect.signature(kind.score_stream).parameters for kind in (Client, AsyncClient)]
    sync, other = ([(p.name, p.kind, p.default) for p in one.values()] for one in streams)
    assert sync == other
    assert "score_stream" in plain
    del plain["score_stream"], awaited["score_stream"]
    assert plain == awaited
    assert set(plain) == {
        "score",
        "score_items",
        "loglikelihood",
        "loglikelihood_rolling",
        "tokenize",
        "models",
        "health",
        "rank",
        "classify",
        "perplexity",
        "surprisal",
        "pmi",
        "dpo_logps",
    }
    assert all(inspect.iscoroutinefunction(getattr(AsyncClient, name)) for name in awaited)


def test_options_are_keyword_only() -> None:
    kinds = inspect.signature(Client).parameters
    assert [n for n, p in kinds.items() if p.kind is not p.KEYWORD_ONLY] == ["base_url"]
    assert set(kinds) == {
        "base_url",
        "api_key",
        "timeout",
        "max_retries",
        "max_items_per_request",
        "max_bytes_per_request",
        "transport",
        "headers",
    }


def test_one_version() -> None:
    """It stands in the client's version.py; the distribution reads it there."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["dynamic"] == ["version"]
    source = ROOT / pyproject["tool"]["hatch"]["version"]["path"]
    assert source.samefile(version.__file__)
    assert metadata.version("mlxscore") == mlxscore_client.__version__
    said = re.compile(r"__version__ = ")
    packages = (ROOT / part for part in ("client", "server"))
    found = [f for p in packages for f in p.rglob("*.py") if said.search(f.read_text("utf-8"))]
    assert found == [source]


def test_the_base_install_is_httpx_and_pydantic_and_says_that_it_is_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [need.split(">=")[0] for need in project["dependencies"]] == ["httpx", "pydantic"]
    assert (Path(mlxscore_client.__file__).parent / "py.typed").exists()
