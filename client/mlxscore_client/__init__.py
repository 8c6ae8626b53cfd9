"""Client of mlxscore: how likely does a language model find this text?

Needs httpx and pydantic only. Importing it opens no connection and reads no environment.
"""

from mlxscore_client.async_client import AsyncClient
from mlxscore_client.client import Client
from mlxscore_client.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    InvalidRequestError,
    InvalidResponseError,
    MlxscoreError,
    NotFoundError,
    PayloadTooLargeError,
    RateLimitError,
    ServerUnavailableError,
)
from mlxscore_client.helpers import (
    PMI,
    Classification,
    DPOLogps,
    Perplexity,
    Ranked,
    Surprisal,
    TokenSurprisal,
    WordSurprisal,
)
from mlxscore_client.version import __version__
from mlxscore_client.wire import (
    Health,
    ModelCard,
    ModelList,
    Score,
    ScoreItem,
    ScoreResponse,
    ScoreResult,
    StreamResult,
    TokenScore,
    TopLogprob,
    Usage,
)

__all__ = [
    "PMI",
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
