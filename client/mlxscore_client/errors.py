"""What can go wrong with a call. Knows no httpx: `http_errors` makes these.

MlxscoreError
├── InvalidRequestError         wrong arguments, and nothing was sent (also a ValueError)
├── APIConnectionError          no answer came
│   └── APITimeoutError         ... in time
├── APIStatusError              the server, or a proxy before it, answered with an error
│   ├── BadRequestError         400, and any 4xx that is not below
│   ├── AuthenticationError     401, 403
│   ├── NotFoundError           404
│   ├── PayloadTooLargeError    413
│   ├── RateLimitError          429
│   ├── InternalServerError     500, and any 5xx that is not below
│   └── ServerUnavailableError  503
└── InvalidResponseError        an answer that is not mlxscore's
"""


class MlxscoreError(Exception):
    """Base of all errors of this package.

    `param` is the path of the offending argument or field, such as `items[3].continuations[1]`.
    `retryable`: whether the very same request may succeed when it is sent again.
    """

    # Everything but the message has a default: that lets an error cross a process pool (pickle).
    def __init__(self, message: str, *, param: str | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retryable = retryable

    def __str__(self) -> str:
        named = self.param is None or self.param in self.message
        return self.message if named else f"{self.message} ({self.param})"


class InvalidRequestError(MlxscoreError, ValueError):
    """An argument is wrong; nothing was sent. `param` names it."""


class APIConnectionError(MlxscoreError):
    """No answer came: no server there, or the connection broke."""


class APITimeoutError(APIConnectionError):
    """No answer came within `timeout`. The server may still be at work on the request."""


class APIStatusError(MlxscoreError):
    """An answer that says what went wrong.

    `type` and `code` are the server's, None where the answer is not mlxscore's (a proxy's page).
    `retry_after`: seconds until it is worth coming back, where the answer says so. `headers` has
    lower-case names; `request_id` finds the request in the server's log.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message, param=param, retryable=retryable)
        self.status = status
        self.type = type
        self.code = code
        self.headers = headers or {}
        self.request_id = self.headers.get("x-request-id")
        self.retry_after = retry_after


class BadRequestError(APIStatusError):
    """400, 405, 415, 422: the request is wrong and will be so again."""


class AuthenticationError(APIStatusError):
    """401, 403: the key is missing or wrong (`api_key`, MLXSCORE_API_KEY)."""


class NotFoundError(APIStatusError):
    """404: another model's name, or not an mlxscore server's path."""


class PayloadTooLargeError(APIStatusError):
    """413: the body is over the server's limit; lower `max_bytes_per_request`."""


class RateLimitError(APIStatusError):
    """429: the queue is full, still so after all retries."""


class InternalServerError(APIStatusError):
    """500: the server failed on this request; 502, 504: a proxy has no answer from it."""


class ServerUnavailableError(APIStatusError):
    """503: the server loads its model, drains, or has stopped scoring."""


class InvalidResponseError(MlxscoreError):
    """An answer with a good status whose body is not mlxscore's, or is not to this request."""
