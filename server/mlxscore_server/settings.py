"""Every knob, one default each: flag = environment variable = field."""

from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mlxscore_server.question import read_template

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
HeadDtype = Literal["float32", "model"]
LayoutChoice = Literal["auto", "packed", "left-padded"]
CpuKernels = Literal["numpy", "mlx"]
Dequantize = Literal["auto", "always", "never"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

Positive = Annotated[int, Field(ge=1)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _split(value: Any) -> Any:
    """What comes several times on the command line arrives as one text, as from the environment."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Names = Annotated[list[str], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[list[SecretStr], NoDecode, BeforeValidator(_split)]


def _template(value: str) -> str:
    try:
        return read_template(value)
    except ValueError as error:
        # Not the message itself: what stands in braces would be looked up.
        raise PydanticCustomError("template", "{what}", {"what": str(error)}) from None


def _cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir("mlxscore"))


class Settings(BaseSettings):
    """Score texts under a language model over HTTP. Every flag is also an environment variable:
    --max-logprobs is MLXSCORE_MAX_LOGPROBS."""

    model_config = SettingsConfigDict(
        env_prefix="MLXSCORE_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
    )

    model: str | None = Field(
        default=None,
        description="Local folder or hub id of a model that mlx-lm loads. Without it: "
        "SmolLM2-135M-Instruct, a small demo model fetched from the Python package index.",
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit of a hub model.")
    trust_remote_code: bool = Field(
        default=False, description="Run Python files that come with the model."
    )
    adapter_path: Path | None = Field(default=None, description="Folder of a LoRA adapter.")
    served_model_name: str | None = Field(
        default=None, description="Name in /v1/models and in requests; default: the model's own."
    )
    dtype: Dtype = Field(
        default="auto",
        description="Weights are computed with in this type. auto: as stored, and float32 on a CPU "
        "(where half precision has no fast matrix product).",
    )
    head_dtype: HeadDtype = Field(
        default="float32",
        description="Type of the output head and the logits: float32, or the model's.",
    )
    max_model_len: Positive | None = Field(
        default=None, description="Longest row in tokens; default: the model's own limit."
    )
    max_batch_tokens: Positive | None = Field(
        default=None,
        description="Tokens in one micro-batch; default: 2048 on a CPU, else measured at start.",
    )
    layout: LayoutChoice = Field(
        default="auto",
        description="How rows lie in a micro-batch. auto: packed (no padding, shared prefixes are "
        "computed once) where the check at load proves it for the model, else left-padded. packed: as "
        "auto, but refuse to start with a model for which it is not right.",
    )
    share_prefixes: bool = Field(
        default=True, description="Compute once what rows begin with alike (packed layout)."
    )
    prefix_cache_mb: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Memory for prefixes that later requests may begin with (packed layout), MB; 0: none "
        "are kept; default: a sixteenth of the device's memory.",
    )
    memory_budget_mb: Positive | None = Field(
        default=None,
        description="Memory that weights, kept prefixes and a micro-batch may take together, MB: what "
        "micro-batches are measured up to at start (not on a CPU); default: four fifths of the device's.",
    )
    cpu_kernels: CpuKernels = Field(
        default="numpy",
        description="On a CPU only: attention and activations through numpy on MLX's memory, or MLX's "
        "own, which compute exponentials one at a time.",
    )
    dequantize: Dequantize = Field(
        default="auto",
        description="Whether quantized weights are unpacked at load: faster, more memory, the same "
        "scores. auto: on a CPU, and on CUDA where they fit.",
    )
    max_queued_tokens: Positive = Field(
        default=16_000_000, description="Tokens that may wait; a request beyond that gets a 429."
    )
    max_queued_requests: Positive = Field(
        default=10_000,
        description="Requests for scores that may be in the server at once; one more gets a 429, before "
        "its body is read.",
    )
    max_rows_per_request: Positive = Field(
        default=250_000,
        description="Rows (continuations, prompts, documents times labels, windows) of one request.",
    )
    max_logprobs: Annotated[int, Field(ge=0)] = Field(
        default=20, description="Largest `top_logprobs` or `logprobs` of a request."
    )
    completions_add_special_tokens: bool = Field(
        default=True,
        description="Whether /v1/completions puts the tokenizer's special tokens (BOS) before a text, "
        "where a request does not say.",
    )
    rerank_template: Annotated[str, AfterValidator(_template)] | None = Field(
        default=None,
        description="The yes/no question of /rerank: a text with {query} and {document} in it, and "
        "{instruction} if you like, or a file that holds one; default: the model's own, if it is a "
        "Qwen3-Reranker, else plain text.",
    )
    enable_tokenizer_info_endpoint: bool = Field(
        default=False,
        description="Serve GET /tokenizer_info. lm-evaluation-harness then uses this server's tokenizer "
        "(/tokenize) instead of its own.",
    )
    max_request_bytes: Positive = Field(
        default=64 * 2**20,
        description="Largest request body in bytes, as sent and unpacked (gzip, deflate).",
    )
    max_connections: Positive = Field(
        default=4096,
        description="Connections that may be open at once; one more gets a 503 and is closed. A few "
        "beside them are kept for /health and /ready.",
    )
    body_timeout: PositiveSeconds = Field(
        default=120.0,
        description="Seconds that a client may take to send a request's head, then its body, and to take "
        "up a piece of its answer; then its connection is closed.",
    )
    request_timeout: PositiveSeconds | None = Field(
        default=None,
        description="Seconds that a request may take from its head to its scores; then it gets a 504. "
        "X-Request-Timeout can ask for less. Default: as long as it takes.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    api_key: Secrets = Field(
        default_factory=list[SecretStr],
        description="Key that requests must show; may be given several times (in the environment: with "
        "commas between them). Other users of this machine can read flags; files they cannot.",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="Keys as lines NAME:sha256:HEX, # begins a comment: what is kept is no key.",
    )
    share_prefix_cache_across_keys: bool = Field(
        default=False,
        description="Let requests of one API key use prefixes kept for another; times of answers then "
        "tell what others have scored.",
    )
    allowed_hosts: Names | None = Field(
        default=None,
        description="Names that requests may ask for this server by (Host header), such as "
        "score.example.com or *.example.com; loopback names always may. Default: any, and none but those "
        "where --host is a loopback address.",
    )
    cors_origins: Names = Field(
        default_factory=list[str],
        description="Origins whose pages may read answers, such as https://app.example.com, or *.",
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8000, description="Port to listen on; 0 takes a free one and logs it."
    )
    cache_dir: Path = Field(
        default_factory=_cache_dir,
        description="Where the default model and the BLAS copy are kept.",
    )
    default_wheel: Path | None = Field(
        default=None,
        description="The default model's wheel, fetched elsewhere (no network needed then).",
    )
    blas: Path | None = Field(
        default=None,
        description="Linux CPU only: the BLAS library to use instead of the one found.",
    )
    drain_timeout: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="Seconds that queued work may take after SIGTERM."
    )
    hang_timeout: Annotated[float, Field(ge=0)] = Field(
        default=600.0,
        description="Seconds without progress, while someone waits for scores, after which the process "
        "ends with exit code 1; more where micro-batches take long; 0: never.",
    )
    log_level: LogLevel = Field(default="info", description="How much to log.")
    log_format: LogFormat = Field(
        default="text",
        description="How lines of the log look: for people, or one JSON object each.",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="Port for GET /metrics alone, at --host, open to all who reach it; 0 takes a free one "
        "and logs it; default: /metrics is served with all else.",
    )
    log_request_text: bool = Field(
        default=False,
        description="Let the log hold what errors that nobody foresaw say: parts of requests may stand in "
        "it. Without it no log level holds any.",
    )
