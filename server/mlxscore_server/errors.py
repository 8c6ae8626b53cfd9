"""What can go wrong, each with its HTTP status, type and code. Knows no HTTP framework.

MlxscoreError
├── InvalidRequest        400  invalid_request_error
├── InvalidApiKey         401  authentication_error
├── ModelNotFound         404  not_found_error
├── BodyTimeout           408  invalid_request_error
├── BodyTooLarge          413  invalid_request_error
├── WrongContentType      415  invalid_request_error
├── HostNotAllowed        421  invalid_request_error
├── QueueFull             429  overloaded_error        (retry_after)
├── TooManyConnections    503  overloaded_error        (retry_after)
├── RequestExpired        504  timeout_error
├── NotReady              503  unavailable_error       (retry_after)
├── EngineStopped         503  unavailable_error
└── ScoringFailed         500  server_error
    └── NonFiniteLogits   500  server_error
StartupError: ends the start with one line and exit code 2; never reaches a client.
"""

from typing import ClassVar


class MlxscoreError(Exception):
    """Base of all errors that become an HTTP answer.

    `param` is the path of the offending field, such as `items[3].continuations[1]`.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    retry_after: float | None = None  # seconds
    challenges: tuple[str, ...] = ()
    """How to say who one is (WWW-Authenticate)."""
    closes: ClassVar[bool] = False
    """Whether the connection ends with the answer."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(MlxscoreError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class InvalidApiKey(MlxscoreError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    challenges = ("Bearer",)


class ModelNotFound(MlxscoreError):
    status = 404
    type = "not_found_error"
    code = "model_not_found"


class BodyTimeout(MlxscoreError):
    """The client took too long to send its request; its connection is closed after the answer."""

    status = 408
    type = "invalid_request_error"
    code = "body_timeout"
    closes = True


class BodyTooLarge(MlxscoreError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class WrongContentType(MlxscoreError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class HostNotAllowed(MlxscoreError):
    """Asked for by a name that is not this server's: maybe a page that rebinds its own."""

    status = 421
    type = "invalid_request_error"
    code = "host_not_allowed"


class QueueFull(MlxscoreError):
    status = 429
    type = "overloaded_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyConnections(MlxscoreError):
    status = 503
    type = "overloaded_error"
    code = "too_many_connections"
    closes = True
    retry_after = 1.0

    @classmethod
    def beyond(cls, limit: int) -> "TooManyConnections":
        return cls(
            f"{limit} connections are open, and no more may be (--max-connections); close some, or come "
            "back later"
        )


class RequestExpired(MlxscoreError):
    """The time that the request, or the operator, gave it is over; none of its rows runs any more."""

    status = 504
    type = "timeout_error"
    code = "request_timeout"


class NotReady(MlxscoreError):
    status = 503
    type = "unavailable_error"
    code = "loading"

    def __init__(self, message: str, *, code: str, retry_after: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class EngineStopped(MlxscoreError):
    """The MLX thread has ended; this process will not score again."""

    status = 503
    type = "unavailable_error"
    code = "engine_stopped"


class ScoringFailed(MlxscoreError):
    """The model raised on a micro-batch; what it said goes to the log, not to the client."""

    code = "scoring_failed"
    row: int | None = None
    """Index of the row in the call's rows, where one row is to blame."""


class NonFiniteLogits(ScoringFailed):
    """The model gave NaN or infinity for this row; a number would be a lie."""

    code = "non_finite_logits"


class StartupError(Exception):
    """The start cannot go on; the message is one line for the operator."""
