"""What attention over a block costs on a device, so that blocks can be chosen. Knows no MLX."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class BlockCosts:
    """Prices in units of one query-key pair (all heads) of a block without a mask; and shapes.

    Prices are ratios, so that they hold for models of any size: heads and head size make a pair and
    a gathered row dearer alike.
    """

    short: int
    """Siblings with fewer tokens than this share a row."""
    max_queries: int
    """About how many tokens of short siblings one row holds at most."""
    query_multiple: int
    """Queries of a causal row are rounded up to this."""
    masked_query_multiple: int
    """Queries of a masked row are rounded up to this."""
    key_multiple: int
    """Keys of a masked row are rounded up to this."""
    max_block_keys: int
    """Key rows that one block gathers at most, unless a single row has more."""
    block: float
    """Of one more block, whatever its size."""
    mask_factor: float
    """Of a pair where there is a mask."""
    query_row: float
    """To gather a query and to put its answer back."""
    key_row: float
    """To gather a key and a value."""

    def causal_shape(self, own: Float64s, last: Float64s) -> tuple[Float64s, Float64s]:
        """Queries and keys of causal rows with at most `own` queries and `last` keys, both of one row."""
        queries = _up(own, self.query_multiple)
        return queries, last - own + queries

    def causal_begin(self, first: Float64s) -> Float64s:
        """Where queries of causal rows begin whose least path is `first`: at a multiple, so that few
        shapes occur."""
        return np.floor(first / self.query_multiple) * self.query_multiple

    def masked_shape(self, own: Float64s, last: Float64s) -> tuple[Float64s, Float64s]:
        """Queries and keys of masked rows with at most `own` queries, `last` keys."""
        return _up(own, self.masked_query_multiple), _up(last, self.key_multiple)

    def causal(
        self, rows: Float64s, first: Float64s, last: Float64s, gathered: Float64s
    ) -> Float64s:
        """The price of causal rows whose least path is `first` and of `last` tokens at most.

        `gathered` is 0 where a reshape does for the gathers, else 1.
        """
        queries, keys = self.causal_shape(last - self.causal_begin(first), last)
        moved = (queries * self.query_row + keys * self.key_row) * gathered
        return self._blocks(rows, keys) + rows * (queries * keys + moved)

    def masked(self, rows: Float64s, own: Float64s, last: Float64s) -> Float64s:
        """The price of masked rows."""
        queries, keys = self.masked_shape(own, last)
        moved = queries * self.query_row + keys * self.key_row
        return self._blocks(rows, keys) + rows * (queries * keys * self.mask_factor + moved)

    def _blocks(self, rows: Float64s, keys: Float64s) -> Float64s:
        return np.ceil(rows * keys * (1 / self.max_block_keys)) * self.block

    @staticmethod
    def cuda() -> "BlockCosts":
        """One H200, bf16, from design measurements of 1B and 8B models.

        A pair: 0.38 ms for 8 x 2048 x 2048 of them (32 heads of 64), 11 ps. With an additive mask
        1.17 ms; 2.5 times as much for 16 x 1024 x 1024, 1.3 times for 8 x 512 x 512, 1.1 times for
        32 x 64 x 1600. Rows: a gather by 8-byte words moves 4 KiB in 4 ns; a query goes both ways (8 ns, 700
        pairs), a key and a value are 2 KiB (2 ns, 180). A block: about 38 us in a window that had
        32 small ones too many (1B: 19 ms in 16 layers, 8B: 40 ms in 32), 2 to 3.4 million pairs.
        Multiples: a new shape builds a graph, and rounding to 64 cost nothing that was seen.
        Keys: 2**18 rows of 4 KiB (8B, keys and values) are 1 GiB.
        """
        return BlockCosts(
            short=32,
            max_queries=256,
            query_multiple=64,
            masked_query_multiple=16,
            key_multiple=64,
            max_block_keys=2**18,
            block=2.5e6,
            mask_factor=2.0,
            query_row=700,
            key_row=180,
        )

    @staticmethod
    def cpu() -> "BlockCosts":
        """numpy on two cores. Careful guesses, not measurements: nothing is rounded, since no shape
        costs by itself, and a block is cheap beside its pairs."""
        return BlockCosts(
            short=32,
            max_queries=256,
            query_multiple=1,
            masked_query_multiple=1,
            key_multiple=1,
            max_block_keys=2**16,
            block=1e5,
            mask_factor=1.3,
            query_row=100,
            key_row=50,
        )


def _up(number: Float64s, multiple: int) -> Float64s:
    return np.ceil(number / multiple) * multiple
