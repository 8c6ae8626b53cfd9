"""Prompts of a completion request as rows: what is read, what is scored. Knows no HTTP, no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mlxscore_client.wire import CompletionRequest
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.refusals import check_length, check_top, refuse_set, short
from mlxscore_server.row import Ids, Row
from mlxscore_server.tokens import Encoder

# Fields that would change the answer, were they obeyed.
_REFUSED = (
    "suffix",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "prompt_embeds",
    "response_format",
    "structured_outputs",
    "use_beam_search",
    "stream",
)


@dataclass(frozen=True)
class Asked:
    """What a request wants of every prompt, with its defaults filled in."""

    echo: bool
    next_token: bool
    """Whether one new token is wanted."""
    top: int | None
    """How many of the most likely tokens; None: no `logprobs` at all."""
    prompt_top: int | None
    """The same for `prompt_logprobs`."""

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens have to be scored."""
        return self.prompt_top is not None or (self.echo and self.top is not None)


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, and the row that answers it."""

    param: str
    text: str | None
    """As sent, where it came as text and nothing was cut."""
    ids: Ids
    """(n,) int32, after truncation."""
    row: Row | None
    """None where there is nothing to compute."""


def asked(request: CompletionRequest, *, max_logprobs: int, vocab_size: int) -> Asked:
    """The request's wishes; raises InvalidRequest for what this service does not do."""
    refuse_set(request, _REFUSED)
    for name in ("n", "best_of"):
        value = getattr(request, name)
        if value is not None and value != 1:
            raise InvalidRequest(
                f"{name} is {short(value)}; this service gives one choice a prompt (1)",
                param=name,
                code="unsupported",
            )
    echo = bool(request.echo)
    new = (0 if echo else 1) if request.max_tokens is None else request.max_tokens
    if new > 1:
        raise InvalidRequest(
            f"max_tokens is {short(new)}, the limit is 1: this service scores given text and adds at most "
            "the one most likely token; a longer text is not its job",
            param="max_tokens",
            code="unsupported",
        )
    return Asked(
        echo=echo,
        next_token=new == 1,
        top=_bounded("logprobs", request.logprobs, max_logprobs, vocab_size),
        prompt_top=_bounded("prompt_logprobs", request.prompt_logprobs, max_logprobs, vocab_size),
    )


def _bounded(name: str, k: int | None, max_logprobs: int, vocab_size: int) -> int | None:
    if k is None:
        return None
    return check_top(
        vocab_size if k == -1 else k,
        name,
        max_logprobs=max_logprobs,
        vocab_size=vocab_size,
        shown=f"-1 (all {vocab_size} tokens)" if k == -1 else None,
    )


def encode_prompts(
    encoder: Encoder, request: CompletionRequest, asked: Asked, *, add_special_tokens: bool
) -> list[EncodedPrompt]:
    """Each prompt's ids and row, in order. Raises InvalidRequest, which names the prompt."""
    prompts, several = _as_list(request)
    params = [f"prompt[{i}]" if several else "prompt" for i in range(len(prompts))]
    found: list[EncodedPrompt] = []
    encoded = encode_each(encoder, prompts, params, add_special_tokens=add_special_tokens)
    for prompt, param, ids in zip(prompts, params, encoded, strict=True):
        kept = _truncated(encoder, request, asked, ids)
        check_length(
            len(kept),
            encoder.max_model_len,
            param,
            new_tokens=asked.next_token,
            new_shown=" and max_tokens is 1",
            hint="; truncate_prompt_tokens cuts prompts",
        )
        text = prompt if isinstance(prompt, str) and len(kept) == len(ids) else None
        found.append(EncodedPrompt(param, text, kept, _row(asked, kept)))
    return found


def encode_each(
    encoder: Encoder,
    prompts: Sequence[str | list[int]],
    params: Sequence[str],
    *,
    add_special_tokens: bool,
) -> list[Ids]:
    """Each prompt's ids, never none at all: text with the tokenizer's special tokens before it or without,
    ids as they are. Raises InvalidRequest, which names the prompt."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(encoder.encode_prompts(texts, add_special_tokens=add_special_tokens))
    found: list[Ids] = []
    for prompt, param in zip(prompts, params, strict=True):
        if isinstance(prompt, str):
            ids = next(encoded)
            if not len(ids):
                raise InvalidRequest(f"{param} is empty: it encodes to no tokens", param=param)
            encoder.check_bound(ids, param)
        else:
            ids = encoder.verbatim(prompt, param)
            if not len(ids):
                raise InvalidRequest(f"{param} is empty", param=param)
        found.append(ids)
    return found


def _as_list(request: CompletionRequest) -> tuple[Sequence[str | list[int]], bool]:
    """The prompts, and whether they came as a list of prompts."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt], False
    if isinstance(prompt[0], int):
        return [cast(list[int], prompt)], False
    return cast("list[str] | list[list[int]]", prompt), True


def _truncated(encoder: Encoder, request: CompletionRequest, asked: Asked, ids: Ids) -> Ids:
    longest = request.truncate_prompt_tokens
    if longest is None:
        return ids
    if longest == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens is 0: nothing of a prompt would be left; give 1 or more, or -1",
            param="truncate_prompt_tokens",
        )
    if longest == -1:
        if encoder.max_model_len is None:
            return ids
        longest = max(1, encoder.max_model_len - asked.next_token)
    return ids[:longest] if request.truncation_side == "right" else ids[-longest:]


def _row(asked: Asked, ids: Ids) -> Row | None:
    # Nothing comes before the first token: its probability is not asked of the model.
    start = 1 if asked.scores_prompt else len(ids)
    if start == len(ids) and not asked.next_token:
        return None
    return Row(
        ids,
        start,
        top_logprobs=max(asked.top or 0, asked.prompt_top or 0),
        ranks=asked.prompt_top is not None,
        next_token=asked.next_token,
    )
