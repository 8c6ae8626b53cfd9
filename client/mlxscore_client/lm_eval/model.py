"""lm_eval's model type `mlxscore`: what lm_eval calls, as grouped token ids for POST /score."""

import logging
from array import array
from collections.abc import Sequence
from typing import Any, NoReturn

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model  # pyright: ignore[reportUnknownVariableType]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mlxscore_client.client import Client
from mlxscore_client.lm_eval.encoders import LocalEncoder, ServerEncoder
from mlxscore_client.lm_eval.service import Scored, Service
from mlxscore_client.lm_eval.units import Encoded, document, questions

_log = logging.getLogger(__name__)


@register_model("mlxscore")  # pyright: ignore[reportUntypedClassDecorator]
class MlxscoreLM(TemplateLM):
    """A model behind an mlxscore server, scored as lm_eval's `hf` would score it.

    Texts become ids here, by `hf`'s rules; a question's choices travel in one item, a document's windows
    in one request. The key, if the server wants one, comes from MLXSCORE_API_KEY: arguments are
    written to the results file.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        tokenizer: str | None = None,
        revision: str = "main",
        trust_remote_code: bool = False,
        add_bos_token: bool | None = None,
        custom_prefix_token_id: int | None = None,
        max_length: int | None = None,
        batch_size: int | str = 1,
        num_concurrent: int = 8,
        timeout: float = 600.0,
        max_retries: int = 4,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        """`batch_size`: rows a request ("auto": 256, at most `max_batch_size`), a question never being
        parted; `num_concurrent` requests are under way at a time. `tokenizer` is a local folder or a hub
        id; without it the server's `/tokenize` is asked. `device` is the server's own affair.
        """
        super().__init__()
        client = self._client = Client(base_url, timeout=timeout, max_retries=max_retries)
        try:
            self._service = Service(
                client,
                model=model,
                batch_size=batch_size,
                max_batch_size=max_batch_size,
                num_concurrent=num_concurrent,
            )
            self._max_length = self._service.max_length(max_length)
            self._custom_prefix_token_id = custom_prefix_token_id
            self._known: dict[tuple[str, bool | None], array[int]] = {}
            self._encoder: LocalEncoder | ServerEncoder = ServerEncoder(
                client, add_bos_token=add_bos_token, threads=num_concurrent
            )
            if tokenizer is not None:
                self._encoder = self._local_encoder(
                    tokenizer,
                    add_bos_token=add_bos_token,
                    revision=revision,
                    trust_remote_code=trust_remote_code,
                )
        except BaseException:
            self.close()
            raise

    def _local_encoder(self, name: str, **options: Any) -> LocalEncoder:
        encoder = LocalEncoder(name, **options)
        encoder.compare(self._client)
        self.tokenizer = encoder.tokenizer
        encoder.set_prefix(self.prefix_token_id)
        return encoder

    def close(self) -> None:
        """Close the connections. lm_eval does not; they end with its process."""
        self._client.close()

    @property
    def max_length(self) -> int:
        """Tokens that the model reads at most."""
        return self._max_length

    @property
    def batch_size(self) -> int:
        """Rows a request."""
        return self._service.rows

    @property
    def _special_tokens(self) -> Any:
        return self._service.card if self.tokenizer is None else self.tokenizer

    @property
    def eot_token_id(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._special_tokens.eos_token_id

    @property
    def prefix_token_id(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What stands for an empty context and before a document."""
        if self._custom_prefix_token_id is not None:
            return self._custom_prefix_token_id
        bos: int | None = self._special_tokens.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Tells lm_eval's caches of requests apart."""
        served = self._service.card.id
        name = served if self.tokenizer is None else self.tokenizer.name_or_path
        return name.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as the text that the model was trained on."""
        if self.tokenizer is None:
            raise ValueError("a chat template needs the tokenizer here: tokenizer=FOLDER_OR_HUB_ID")
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def get_model_info(self) -> dict[str, Any]:
        """What lm_eval adds to its results file."""
        return self._service.info()

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        known = self._known.get((string, add_special_tokens))
        if known is not None:
            return known.tolist()
        return next(iter(self._encoder.encode([string], add_special_tokens)))

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Scored]:
        """lm_eval's own, with all texts encoded beforehand: many at a time is much faster."""
        wanted: list[tuple[str, bool | None]] = []
        for context, continuation in (request.args for request in requests):
            if context:
                wanted += [(context.rstrip(), None), (context + continuation, None)]
            else:
                wanted.append((continuation, False))
        self._encode(wanted, disable_tqdm)
        answers = super().loglikelihood(list(requests), disable_tqdm=disable_tqdm)
        self._known.clear()
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any
    ) -> list[Scored]:
        # A blank context has no ids in most tokenizers.
        whole = [(texts, context or [self._prefix()], rest) for texts, context, rest in requests]
        units, cut = questions(whole, self.max_length)
        if cut:
            _log.warning(
                "%d contexts were cut from the left to max_length %d", cut, self.max_length
            )
        answers: list[Scored] = [(0.0, False)] * len(requests)
        with _bar("Running loglikelihood requests", len(requests), disable_tqdm) as bar:
            for unit, scores in self._service.score(units):
                for place, score in enumerate(scores, unit.place):
                    answers[place] = score
                    self.cache_hook.add_partial("loglikelihood", requests[place][0], score)
                bar.update(len(scores))
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Whole documents, each in lm_eval's own disjoint windows."""
        texts: list[str] = [request.args[0] for request in requests]
        self._encode([(text, None) for text in texts], disable_tqdm)
        # A document without a token has no windows.
        units = [
            document(place, windows)
            for place, text in enumerate(texts)
            if (windows := self._windows(self.tok_encode(text)))
        ]
        self._known.clear()
        sums = [0.0] * len(texts)
        with _bar("Running loglikelihood_rolling requests", len(units), disable_tqdm) as bar:
            for unit, scores in self._service.score(units):
                text, found = texts[unit.place], sum(loglikelihood for loglikelihood, _ in scores)
                sums[unit.place] = found
                self.cache_hook.add_partial("loglikelihood_rolling", (text,), found)
                bar.update()
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> NoReturn:
        """Never."""
        raise NotImplementedError(
            "mlxscore is a scoring service: it says how likely given texts are and writes none itself. "
            "Leave out the tasks that generate (output_type: generate_until)."
        )

    def _prefix(self) -> int:
        if self.prefix_token_id is None:
            raise ValueError(
                "something must stand before the first token, and this model has neither a BOS nor an "
                "EOS token: give custom_prefix_token_id=ID"
            )
        return self.prefix_token_id

    def _windows(self, ids: list[int]) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            token_list=ids, prefix_token=self._prefix(), max_seq_len=self.max_length, context_len=1
        )
        return [make_disjoint_window(window) for window in windows]

    def _encode(self, wanted: Sequence[tuple[str, bool | None]], disable_tqdm: bool) -> None:
        """Have the ids of all these at hand, four bytes an id."""
        distinct = dict.fromkeys(wanted)
        with _bar("Encoding texts", len(distinct), disable_tqdm) as bar:
            for specials in (None, False):
                texts = [text for text, said in distinct if said is specials]
                for text, ids in zip(texts, self._encoder.encode(texts, specials), strict=True):
                    self._known[text, specials] = array("i", ids)
                    bar.update()


def _bar(what: str, total: int, disable: bool) -> "tqdm[NoReturn]":
    return tqdm(desc=what, total=total, disable=disable)
