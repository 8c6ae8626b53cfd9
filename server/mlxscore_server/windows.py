"""Token ids of any number as windows that the model can read. Knows no texts, no HTTP, no MLX.

lm-evaluation-harness's rule. Here with 10 tokens and windows of W = 4, for a stride S of 4 (S = W is
the default: its disjoint windows) and of 2; P is the prefix token (BOS, else EOS):

    reads       scores           reads       scores
    P 0 1 2     0 1 2 3          P 0 1 2     0 1 2 3
    3 4 5 6     4 5 6 7          1 2 3 4         4 5
    5 6 7 8         8 9          3 4 5 6         6 7
                                 5 6 7 8         8 9

Each token is scored once. Each window but an only one reads W tokens, the last one too: where few
tokens are left to score it has the more context.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlxscore_server.errors import InvalidRequest
from mlxscore_server.refusals import short
from mlxscore_server.row import Ids

# What lm-evaluation-harness takes where a model states no limit.
_DEFAULT_WINDOW = 2048


class Window(NamedTuple):
    """What one window reads, and one token more; those from `start` on are scored."""

    ids: Ids
    """At most (W + 1,) int32; a view of the text's where nothing was put before it."""
    start: int


@dataclass(frozen=True)
class Windowing:
    """How texts are cut into windows."""

    size: int
    """Tokens that the model reads at once, W."""
    stride: int
    """Tokens that each window after the first scores, S; at most W."""
    prefix_in_every: bool = False
    """Whether the prefix token takes the place of every window's first token of context."""
    max_overlapping: int | None = None
    """How many tokens overlapping windows of one text may have together."""

    @staticmethod
    def of(
        size: int | None,
        stride: int | None,
        *,
        limit: int | None,
        prefix_in_every: bool = False,
        max_overlapping: int | None = None,
    ) -> "Windowing":
        """With defaults filled in: the model's limit; disjoint. Raises InvalidRequest."""
        chosen = (limit or _DEFAULT_WINDOW) if size is None else size
        if limit is not None and chosen > limit:
            raise InvalidRequest(
                f"window is {short(chosen)}, the model's limit is {limit} tokens", param="window"
            )
        if stride is not None and stride > chosen:
            raise InvalidRequest(
                f"stride is {short(stride)}, the window has only {chosen} tokens"
                f"{' (the default)' if size is None else ''}: some would never be scored",
                param="stride",
            )
        return Windowing(chosen, stride or chosen, prefix_in_every, max_overlapping)

    def cut(self, ids: Ids, prefix_id: int | None, param: str) -> tuple[int, list[Window]]:
        """How many tokens were put before (n,) ids, n >= 1, and their windows in order.

        The prefix token is put there (1), unless they begin with it or there is none (0): then their
        first token is context only. Raises InvalidRequest where that leaves nothing to score.
        """
        if self.prefix_in_every and prefix_id is None:
            raise InvalidRequest(
                'prefix_in is "every", but this model has neither a BOS nor an EOS token',
                param="prefix_in",
            )
        prefix = np.array([] if prefix_id is None else [prefix_id], np.int32)
        added = int(prefix_id is not None and int(ids[0]) != prefix_id)
        done = 1 - added
        if done == len(ids):
            raise _nothing_to_score(prefix_id, param)
        windows: list[Window] = []
        for end in self._ends(len(ids), done, param):
            first = end - 1 - self.size
            if not windows:
                first = max(first, -added)  # it may be shorter; -1 is the prefix token's place
            if first < 0 or (windows and self.prefix_in_every):
                row = np.concatenate([prefix, ids[first + 1 : end]])
            else:
                row = ids[first:end]
            windows.append(Window(row, len(row) - (end - done)))
            done = end
        return added, windows

    def _ends(self, length: int, first: int, param: str) -> list[int]:
        """Where each window's scored tokens end, the first window's beginning at `first`."""
        first_end = min(length, first + self.size)
        later = -(-(length - first_end) // self.stride)
        read = (1 + later) * self.size
        if (
            self.max_overlapping is not None
            and later
            and self.stride < self.size
            and read > self.max_overlapping
        ):
            raise InvalidRequest(
                f"{param} has {length} tokens: windows of {self.size} with a stride of {self.stride} read "
                f"{read} tokens, the limit (--max-queued-tokens) is {self.max_overlapping}; "
                "take a larger stride or a smaller window",
                param="stride",
            )
        ends = first_end + self.stride * np.arange(1 + later)
        return np.minimum(ends, length).tolist()


def _nothing_to_score(prefix_id: int | None, param: str) -> InvalidRequest:
    why = (
        "this model has neither a BOS nor an EOS token to stand before it"
        if prefix_id is None
        else f"it is the token that stands before a text (id {prefix_id})"
    )
    return InvalidRequest(
        f"{param} is a single token and {why}: nothing is left to score", param=param
    )
