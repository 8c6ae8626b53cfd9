"""Prompts of an SGLang request as rows: what is read, what is scored. Knows no HTTP, no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from mlxscore_client.wire import GenerateRequest, SamplingParams
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.prompts import encode_each
from mlxscore_server.refusals import check_length, check_top, refuse_set, short, unsupported_value
from mlxscore_server.row import Ids, Row
from mlxscore_server.settings import Settings
from mlxscore_server.spread import Spread
from mlxscore_server.tokens import Encoder

# Fields that would change the answer, were they obeyed.
_REFUSED = (
    "stream",
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "session_params",
    "custom_logit_processor",
    "return_hidden_states",
)
# The same among `sampling_params`, and what leaves the answer as it is.
_NEUTRAL: dict[str, object] = {
    "n": 1,
    "min_new_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
}

# In tokens, about what a row costs besides its prompt.
_ROW = 8


@dataclass(frozen=True)
class Generation:
    """One prompt, what is wanted of it, and the rows that answer it."""

    param: str
    rid: str
    ids: Ids
    """(n,) int32."""
    new_tokens: int
    """0 or 1."""
    logprobs: bool
    start: int
    """The first token of the prompt that is answered; it has no logprob itself."""
    top: int
    token_ids: Ids
    """(m,) int32: whose logprobs after the prompt are wanted."""
    row: Row | None
    """The prompt and the new token; None where there is nothing to compute."""

    @property
    def rows(self) -> list[Row]:
        """The prompt's own row, if any, then one for each of `token_ids`, which read the same."""
        first = [] if self.row is None else [self.row]
        return first + [Row(np.append(self.ids, i), len(self.ids)) for i in self.token_ids]


def generations(request: GenerateRequest, encoder: Encoder, settings: Settings) -> list[Generation]:
    """Each prompt's ids and rows, in order. Raises InvalidRequest, which names the field."""
    refuse_set(request, _REFUSED)
    single, prompts, field = request.single, *_prompts(request)
    params = [field] if single else [f"{field}[{i}]" for i in range(len(prompts))]
    if not prompts:
        raise InvalidRequest(f"{field} must not be empty", param=field)
    spread = Spread(None if single else len(prompts))
    new_tokens = [
        _new_tokens(given, where)
        for given, where in spread.named("sampling_params", request.sampling_params)
    ]
    rids = spread.rids(request.rid)
    logprobs = spread.of("return_logprob", request.return_logprob, False)
    starts = spread.named("logprob_start_len", request.logprob_start_len)
    tops = [
        check_top(
            top or 0,
            where,
            max_logprobs=settings.max_logprobs,
            vocab_size=encoder.num_embeddings,
        )
        for top, where in spread.named("top_logprobs_num", request.top_logprobs_num)
    ]
    token_ids = [
        encoder.verbatim(ids or [], where) for ids, where in spread.ids(request.token_ids_logprob)
    ]
    found: list[Generation] = []
    for i, ids in enumerate(encode_each(encoder, prompts, params, add_special_tokens=True)):
        wanted = token_ids[i] if logprobs[i] else token_ids[i][:0]
        check_length(
            len(ids),
            encoder.max_model_len,
            params[i],
            new_tokens=bool(new_tokens[i] or len(wanted)),
            new_shown=" and one more comes after them",
        )
        start = _start(*starts[i], len(ids), params[i], has_token_ids=len(wanted) > 0)
        top = tops[i] if logprobs[i] else 0
        row = _row(ids, start if logprobs[i] else len(ids) - 1, top, new_tokens[i])
        found.append(
            Generation(params[i], rids[i], ids, new_tokens[i], logprobs[i], start, top, wanted, row)
        )
    _check_rows(found, settings.max_queued_tokens)
    return found


def _prompts(request: GenerateRequest) -> tuple[Sequence[str | list[int]], str]:
    """The prompts, and the field they came in."""
    if request.text is not None:
        return ([request.text] if isinstance(request.text, str) else request.text), "text"
    ids = request.input_ids or []
    return cast("list[list[int]]", [ids] if request.single else ids), "input_ids"


def _new_tokens(given: SamplingParams | None, where: str) -> int:
    """0 or 1; raises InvalidRequest for anything else, and for what would change which token comes."""
    for name, neutral in _NEUTRAL.items():
        value = None if given is None else getattr(given, name)
        if value is not None and value != neutral:
            raise unsupported_value(f"{where}.{name}", value)
    wanted = None if given is None else given.max_new_tokens
    if wanted is None or wanted > 1:
        what = "is required" if wanted is None else f"is {short(wanted)}"
        raise InvalidRequest(
            f"{where}.max_new_tokens {what}: give 0 or 1; this service scores given text and adds at most "
            "the one most likely token, a longer text is not its job",
            param=f"{where}.max_new_tokens",
            code="unsupported",
        )
    return wanted


def _start(given: int | None, where: str, length: int, prompt: str, *, has_token_ids: bool) -> int:
    """The first token that is answered."""
    if given is None or given == -1:
        return length - 1
    if given >= length:
        raise InvalidRequest(
            f"{where} is {short(given)}, {prompt} has {length} tokens; give at most {length - 1}",
            param=where,
        )
    if has_token_ids and given < length - 1:
        raise InvalidRequest(
            f"token_ids_logprob is answered for the token after the prompt only, not for the prompt's own: "
            f"with it, {where} must be -1 (got {given})",
            param="token_ids_logprob",
            code="unsupported",
        )
    return given


def _row(ids: Ids, start: int, top: int, new_tokens: int) -> Row | None:
    if start == len(ids) - 1 and not new_tokens:
        return None
    return Row(ids, start + 1, top_logprobs=top, next_token=new_tokens == 1)


def _check_rows(found: Sequence[Generation], max_tokens: int) -> None:
    """Before the rows are made: many ids after a long prompt are far more than the body held."""
    tokens = sum(len(one.token_ids) * (len(one.ids) + _ROW) for one in found)
    if tokens > max_tokens:
        raise InvalidRequest(
            f"token_ids_logprob: a row for each id after its prompt counts as {tokens} tokens, the limit "
            f"(--max-queued-tokens) is {max_tokens}; give fewer ids or prompts",
            param="token_ids_logprob",
        )
