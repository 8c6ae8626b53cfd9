"""All ways in which a scorer may run rows: none may show in a score."""

from dataclasses import dataclass

from mlxscore_server.scoring import BatchScorer, Layout


@dataclass(frozen=True)
class Way:
    """How a scorer runs rows."""

    layout: Layout = "packed"
    max_batch_tokens: int = 150
    kept_bytes: int = 2**26
    share: bool = True

    def set(self, scorer: BatchScorer) -> None:
        scorer.layout = self.layout
        scorer.max_batch_tokens = self.max_batch_tokens
        scorer.share_prefixes = self.share
        scorer.kept.max_bytes = self.kept_bytes


LEFT_PADDED = Way("left-padded", kept_bytes=0)
PACKED_WAYS = [
    Way(),
    Way(kept_bytes=0),
    Way(max_batch_tokens=16, kept_bytes=0),  # every prefix is a chain over micro-batches
    Way(max_batch_tokens=16, kept_bytes=20_000),  # and is evicted soon
    Way(share=False, kept_bytes=0),
]
