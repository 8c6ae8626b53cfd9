"""A tokenizer's configuration as plain JSON, for clients that use it from afar. Knows no HTTP."""

import math
from collections.abc import Mapping
from typing import Any, cast

# Where the files lie on this machine and how they were fetched; and what would be megabytes.
_PRIVATE = frozenset(
    {"is_local", "local_files_only", "token", "use_auth_token", "cache_dir", "backend"}
    | {"vocab", "merges", "tokenizer_object", "name_or_path"}
)

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def tokenizer_info(
    tokenizer: Any, *, chat_template: str | None, adds_bos: bool, max_length: int | None
) -> dict[str, Any]:
    """What stands in `tokenizer_config.json`, special tokens as text, and the tokenizer's class."""
    given: Mapping[str, Any] = getattr(tokenizer, "init_kwargs", {})
    info: dict[str, Any] = {
        name: _plain(value)
        for name, value in given.items()
        if name not in _PRIVATE and not name.endswith("_file")
    }
    info.setdefault("tokenizer_class", type(tokenizer).__name__)
    for name in _SPECIAL:
        token: object = getattr(tokenizer, name, None)
        info[name] = None if token is None else str(token)
    info["chat_template"] = chat_template
    info["add_bos_token"] = adds_bos
    info["model_max_length"] = max_length
    return info


def _plain(value: object) -> Any:
    content: object = getattr(value, "content", None)
    if isinstance(content, str):  # an AddedToken
        return content
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return {str(key): _plain(one) for key, one in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in cast(list[object], value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None
