"""The split of body and output head, for any architecture, without a list of names.

The output projection is the last module that turns hidden states into logits. It is found by
watching one forward pass, and from then on it first selects the wanted rows of the hidden states;
the model's own `__call__` does everything else, so scaling and soft-caps stay as they are.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

Project = Callable[..., mx.array]


@dataclass
class _Seen:
    """A call of a module, and what came of it."""

    module: nn.Module
    method: str
    inputs: mx.array
    outputs: mx.array


def _methods_of(module: nn.Module) -> list[str]:
    # A tied embedding is called as a lookup at the start and as a projection at the end.
    return ["__call__", "as_linear"] if hasattr(module, "as_linear") else ["__call__"]


def _with_method(module: nn.Module, method: str, fn: Project) -> None:
    """Give this one module (not its class) another method; its parameters stay where they are."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (cls,), {method: fn, "__module__": cls.__module__})


def _watch(model: nn.Module, tokens: mx.array) -> tuple[mx.array, list[_Seen]]:
    """Run the model once; calls of its modules on arrays, outermost calls on hidden states only."""
    seen: list[_Seen] = []
    depth = 0
    before: list[tuple[nn.Module, type]] = []

    def watched(module: nn.Module, method: str) -> Project:
        original: Project = getattr(type(module), method)

        def call(self: nn.Module, x: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            hidden = isinstance(x, mx.array) and mx.issubdtype(x.dtype, mx.floating)
            depth += hidden
            try:
                y = original(self, x, *args, **kwargs)
            finally:
                depth -= hidden
            if depth == 0 and all(isinstance(a, mx.array) for a in (x, y)):
                seen.append(_Seen(self, method, x, y))
            return y

        return call

    try:
        for module in cast(list[nn.Module], model.modules()):
            if module is model or not callable(module):
                continue
            for method in _methods_of(module):
                before.append((module, type(module)))
                _with_method(module, method, watched(module, method))
        logits = cast(Project, model)(tokens)
    finally:
        for module, cls in reversed(before):
            module.__class__ = cls
    return logits, seen


def _projection(seen: list[_Seen], logits: mx.array) -> _Seen | None:
    """The last call that turned hidden states into an array of the logits' shape."""
    for call in reversed(seen):
        is_hidden = mx.issubdtype(call.inputs.dtype, mx.floating)
        if is_hidden and call.outputs.shape == logits.shape:
            return call
    return None


def _num_embeddings(seen: list[_Seen], tokens: mx.array) -> int | None:
    """Rows of the table in which the tokens were looked up; an id beyond it reads wild memory."""
    for call in seen:
        if call.inputs is tokens and hasattr(call.module, "weight"):
            return int(cast(mx.array, call.module.weight).shape[0])
    return None


class Head:
    """Runs a model with its output projection on the wanted rows only.

    `found` is False where no projection was seen: then the whole model runs and rows of its logits
    are taken, which is right but costs memory for all positions.
    """

    def __init__(self, model: nn.Module, *, float32: bool) -> None:
        tokens = mx.zeros((1, 2), mx.int32)
        logits, seen = _watch(model, tokens)
        if getattr(logits, "ndim", None) != 3:
            raise ValueError("the model's answer is no (B, L, V) array of logits")
        self.vocab_size: int = logits.shape[-1]
        self._model = cast(Project, model)
        self._float32 = float32
        rows = _num_embeddings(seen, tokens)
        self.num_embeddings: int = min(rows or self.vocab_size, self.vocab_size)
        """Token ids must be below this, as inputs and as targets."""
        last = _projection(seen, logits)
        self.found = last is not None
        self.dtype: mx.Dtype = last.inputs.dtype if last else logits.dtype
        """Of the hidden states, and so of the whole body."""
        self._plain = last is not None and last.outputs is logits
        """Whether nothing comes after the projection (no scaling, no soft-cap)."""
        self._rows: mx.array | None = None
        self._instead: mx.array | None = None
        self._hidden: mx.array | None = None
        if last is not None:
            self._module = last.module
            self._project: Project = getattr(type(last.module), last.method)
            self._class = type(last.module)

            # A plain function: a bound method would not be handed the module it is called on.
            def tapped(_: nn.Module, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
                return self._tapped(x, *args, **kwargs)

            _with_method(last.module, last.method, tapped)

    def _tapped(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        if self._instead is not None:
            return self._logits(self._instead)
        if self._rows is None:
            return self._project(self._module, x, *args, **kwargs)
        self._hidden = mx.take(x.reshape(-1, x.shape[-1]), self._rows, axis=0)[None]
        return self._hidden

    def _logits(self, hidden: mx.array) -> mx.array:
        return self._project(self._module, hidden.astype(mx.float32) if self._float32 else hidden)

    def body(self, tokens: mx.array, cache: list[Any] | None, rows: mx.array) -> mx.array:
        """What the head would read at the wanted rows, (W, D); lazy.

        `tokens` (B, L) int32; `rows` (W,) int32 index the B * L positions. Where no projection was
        found, the logits themselves, (W, V).
        """
        if not self.found:
            whole = self._model(tokens, cache=cache) if cache is not None else self._model(tokens)
            return mx.take(whole.reshape(-1, self.vocab_size), rows, axis=0)
        self._rows = rows
        try:
            # The stand-in projection's answer is not logits: what follows it is dropped unevaluated.
            _ = self._model(tokens, cache=cache) if cache is not None else self._model(tokens)
            assert self._hidden is not None, "this is a bug: the projection was not called"
            return self._hidden[0]
        finally:
            self._rows = self._hidden = None

    @contextmanager
    def widened(self) -> Generator[None]:
        """For the time of some calls of `logits`: cast a half-precision projection to float32 once for
        all of them, not in each (8B, 128k tokens: 2 GB)."""
        weight = cast(Any, self._module).get("weight") if self.found and self._float32 else None
        if not isinstance(weight, mx.array) or weight.dtype not in (mx.bfloat16, mx.float16):
            yield
            return
        self._module.weight = weight.astype(mx.float32)
        try:
            yield
        finally:
            self._module.weight = weight

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits (n, V) of (n, D) rows that `body` gave; lazy. float32 if the head is."""
        if not self.found:
            return hidden.astype(mx.float32) if self._float32 else hidden
        return (self._logits(hidden[None]) if self._plain else self._replay(hidden[None]))[0]

    def _replay(self, hidden: mx.array) -> mx.array:
        """What the model's own code does from the projection on.

        MLX is lazy: the body of this call is a graph that nothing asks for, so it never runs.
        """
        self._instead = hidden
        try:
            return self._model(mx.zeros((1, 1), mx.int32))
        finally:
            self._instead = None

    def close(self) -> None:
        """Give the model its own projection back; from then on its whole logits are used."""
        if self.found:
            self._module.__class__ = self._class
            self.found = False
