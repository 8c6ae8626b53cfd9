"""Text to ids: boundary, special tokens, empty contexts, truncation, pieces."""

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from mlxscore_client.wire import ScoreItem
from mlxscore_server.errors import InvalidRequest
from mlxscore_server.pairs import EncodedItem, EncodedPair, encode_items
from mlxscore_server.tokens import Encoder, limit_from

GOLDEN = Path(__file__).parent / "golden" / "smollm2-135m.jsonl"
Part = str | list[int]


def encoder(tokenizer: Any, limit: int | None = None) -> Encoder:
    return Encoder(tokenizer, num_embeddings=len(tokenizer), max_model_len=limit)


def item(e: Encoder, context: Part, *continuations: Part, **options: Any) -> EncodedItem:
    options = {"add_special_tokens": None, "boundary": "joint", "truncation": "error"} | options
    items = [ScoreItem(context=context, continuations=list(continuations))]
    return encode_items(e, items, **options)[0]


def pair(e: Encoder, context: Part, continuation: Part, **options: Any) -> EncodedPair:
    return item(e, context, continuation, **options).pairs[0]


def scored(e: Encoder, found: EncodedPair) -> bytes:
    return b"".join(map(e.pieces.piece, found.ids[found.start :].tolist()))


def before(e: Encoder, found: EncodedPair) -> bytes:
    return b"".join(map(e.pieces.piece, found.ids[: found.start].tolist()))


@pytest.fixture(scope="module")
def golden_encoder(default_model_dir: Path) -> Encoder:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(default_model_dir))
    return Encoder(tokenizer, num_embeddings=49152, max_model_len=8192)


def test_golden_ids(golden_encoder: Encoder) -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    assert len(lines) == 40
    for line in lines:
        found = pair(golden_encoder, line["context"], line["continuation"])
        if line.get("merged"):
            assert found.merged_boundary
            whole = line["whole_ids"]
            # Where nothing is shared, the BOS stands in for the context.
            assert found.ids.tolist() in (whole, [1, *whole])
            assert found.start >= 1
        else:
            assert not found.merged_boundary
            assert found.ids.tolist() == line["context_ids"] + line["continuation_ids"]
            assert found.start == len(line["context_ids"])


def test_golden_ids_in_one_request(golden_encoder: Encoder) -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    items = [
        ScoreItem(context=line["context"], continuation=line["continuation"]) for line in lines
    ]
    found = encode_items(
        golden_encoder, items, add_special_tokens=None, boundary="joint", truncation="error"
    )
    for line, together in zip(lines, found, strict=True):
        alone = item(golden_encoder, line["context"], line["continuation"])
        assert together.context_tokens == alone.context_tokens
        (a,), (b,) = together.pairs, alone.pairs
        assert (a.ids.tolist(), a.start) == (b.ids.tolist(), b.start)
        assert a.merged_boundary == bool(line.get("merged"))


def test_joint_keeps_the_contexts_own_ids() -> None:
    e = encoder(byte_level())
    found = pair(e, "the Ans", " Paris")
    assert (before(e, found), scored(e, found)) == (b"the Ans", b" Paris")
    assert not found.merged_boundary
    assert (found.num_bytes, found.num_chars) == (6, 6)


@pytest.mark.parametrize(
    ("context", "continuation", "kept"),
    [
        ("Ans", "wer", BOS_BYTES := b"<s>"),
        ("a Ans", "wer", b"a "),
        ("hello wor l", "d", b"hello wor "),
    ],
)
def test_a_token_across_the_boundary_is_scored_and_reported(
    context: str, continuation: str, kept: bytes
) -> None:
    e = encoder(byte_level())
    found = pair(e, context, continuation)
    assert found.merged_boundary
    assert before(e, found) == kept
    assert len(found.ids) > found.start
    together = (context + continuation).encode()
    assert scored(e, found) == together.removeprefix(kept)
    assert found.num_chars == len(continuation)


@pytest.mark.parametrize(
    ("merges", "context", "continuation"),
    [
        ((("l", "d"), ("r", "ld"), ("o", "rld")), "hello wor", "ld"),
        ((("1", "0"),), "1", "0"),
        ((("(", '"'), ('("', ")")), "(", '")'),
    ],
)
@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("specials", [None, False])
def test_joins_that_one_token_spans(
    merges: tuple[tuple[str, str], ...],
    context: str,
    continuation: str,
    add_bos: bool,
    specials: bool | None,
) -> None:
    e = encoder(byte_level(merges=merges, add_bos=add_bos))
    found = pair(e, context, continuation, add_special_tokens=specials)
    assert found.merged_boundary
    kept = before(e, found).removeprefix(b"<s>")
    assert context.encode().startswith(kept)
    assert kept + scored(e, found) == (context + continuation).encode()
    apart = pair(e, context, continuation, boundary="separate", add_special_tokens=specials)
    assert not apart.merged_boundary
    assert scored(e, apart) == continuation.encode()


PARAGRAPH = (
    'The Answer is 1.  A person wld Answer Pa–ris 👍🏽;\n\nhe Answers: "the wor ld" é, Answerld.'
)


@given(st.integers(1, len(PARAGRAPH) - 1), st.booleans())
def test_merged_says_exactly_where_the_contexts_ids_are_no_prefix(cut: int, add_bos: bool) -> None:
    e = encoder(byte_level(add_bos=add_bos))
    found = pair(e, PARAGRAPH[:cut], PARAGRAPH[cut:])
    own, whole = (ids.tolist() for ids in e.encode_texts([PARAGRAPH[:cut].rstrip(), PARAGRAPH]))
    assert found.merged_boundary == (whole[: len(own)] != own)
    assert found.ids[int(add_bos) :].tolist() == whole
    if not found.merged_boundary:
        assert found.ids[int(add_bos) : found.start].tolist() == own


@given(st.text(alphabet="Answer Pld é👍", min_size=2, max_size=30), st.data())
def test_any_split_of_any_text_scores_something_and_loses_nothing(text: str, data: Any) -> None:
    cut = data.draw(st.integers(1, len(text) - 1))
    e = encoder(byte_level())
    found = pair(e, text[:cut], text[cut:])
    assert 1 <= found.start < len(found.ids)
    joined = before(e, found).removeprefix(b"<s>") + scored(e, found)
    assert joined == text.encode()
    if not found.merged_boundary:
        context = text[:cut].rstrip() if text[:cut].strip() else text[:cut]
        assert before(e, found) == context.encode()


def test_trailing_whitespace_of_a_context_moves_to_the_continuation() -> None:
    e = encoder(byte_level())
    moved, plain = pair(e, "The capital is \n", "Paris"), pair(e, "The capital is", " \nParis")
    assert moved.ids.tolist() == plain.ids.tolist()
    assert moved.start == plain.start
    assert (moved.num_chars, plain.num_chars) == (5, 7)  # as sent
    apart = pair(e, "The capital is ", "Paris", boundary="separate")
    assert scored(e, apart) == b"Paris"


def test_a_blank_context_stays() -> None:
    e = encoder(byte_level())
    found = pair(e, " ", "aris")
    assert (before(e, found), scored(e, found)) == (b" ", b"aris")
    merged = pair(e, " ", "Paris")
    assert merged.merged_boundary
    assert (before(e, merged), scored(e, merged)) == (b"<s>", b" Paris")


def test_ids_are_verbatim_and_never_given_a_bos() -> None:
    e = encoder(byte_level(add_bos=True))
    found = pair(e, [9, 8], [7, 6])
    assert (found.ids.tolist(), found.start) == ([9, 8, 7, 6], 2)
    assert found.ids.dtype == np.int32
    assert found.num_bytes == 2


def test_mixed_items_are_encoded_apart() -> None:
    e = encoder(byte_level(add_bos=True))
    text_then_ids = pair(e, "An", [9])
    assert before(e, text_then_ids) == b"<s>An"
    assert text_then_ids.ids.tolist()[-1:] == [9]
    ids_then_text = pair(e, [9], "wer")
    assert ids_then_text.ids.tolist()[:1] == [9]
    assert scored(e, ids_then_text) == b"wer"
    assert not ids_then_text.merged_boundary


# --- special tokens ---


def bos_count(e: Encoder, found: EncodedPair) -> int:
    return found.ids.tolist().count(e.bos_token_id)


@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_one_bos_where_the_tokenizer_adds_it(boundary: str) -> None:
    e = encoder(byte_level(add_bos=True))
    assert e.adds_bos
    for value, count in ((None, 1), (True, 1), (False, 0)):
        found = pair(e, "Hi", " Paris", add_special_tokens=value, boundary=boundary)
        assert bos_count(e, found) == count
        assert before(e, found).endswith(b"Hi")
    literal = pair(e, "<s>Hi", " Paris", boundary=boundary)
    assert bos_count(e, literal) == 1
    assert bos_count(e, pair(e, "", "Hello", boundary=boundary)) == 1


def with_template(template: str) -> PreTrainedTokenizerFast:
    """Byte-level, with BOS and EOS put where the template says."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def test_a_prefix_of_several_tokens_goes_in_front_whole_and_never_gives_two_bos() -> None:
    e = encoder(with_template("<s> </s> $A </s>"))
    assert (e.prefix_ids, e.adds_bos) == ((0, 1), True)
    assert before(e, pair(e, "Hi", " P")) == b"<s></s>Hi"
    assert before(e, pair(e, "", "Hi")) == b"<s>"
    assert before(e, pair(e, "", "<s>Hi")) == b"<s>"
    assert before(e, pair(e, "<s>Hi", " P")) == b"<s>Hi"
    assert pair(e, [], [0, 9]).ids.tolist() == [0, 9]


def test_a_tokenizer_that_only_appends_puts_nothing_in_front() -> None:
    e = encoder(with_template("$A </s>"))
    assert (e.prefix_ids, e.adds_bos) == ((), False)
    assert before(e, pair(e, "Hi", " P")) == b"Hi"


def test_the_prefix_is_found_where_the_vocabulary_lacks_a_letter() -> None:
    backend = Tokenizer(models.BPE(vocab={"<s>": 0, "A": 1, "C": 2}, merges=[]))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    e = encoder(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    assert e.prefix_ids == (0,)
    assert pair(e, "A", "C").ids.tolist() == [0, 1, 2]


def test_bos_is_put_in_front_and_not_into_ids() -> None:
    e = encoder(byte_level(add_bos=True))
    ids = pair(e, "Hi", " Paris")
    again = pair(e, ids.ids[: ids.start].tolist(), ids.ids[ids.start :].tolist())
    assert again.ids.tolist() == ids.ids.tolist()
    assert bos_count(e, pair(e, "<s>Hi", " P", add_special_tokens=False)) == 1
    assert bos_count(e, pair(e, [9], "Hi")) == 0


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    e = encoder(byte_level())
    assert not e.adds_bos
    for value in (None, True, False):
        assert bos_count(e, pair(e, "Hi", " P", add_special_tokens=value)) == 0


def test_an_appended_eos_is_no_part_of_the_text() -> None:
    e = encoder(byte_level(add_bos=True, add_eos=True))
    for boundary in ("joint", "separate"):
        found = pair(e, "Hi", " Paris", boundary=boundary)
        assert not found.merged_boundary
        assert (before(e, found), scored(e, found)) == (b"<s>Hi", b" Paris")


@pytest.mark.parametrize(
    ("tokens", "stands_in"),
    [({}, b"<s>"), ({"bos": None}, b"</s>"), ({"add_bos": True}, b"<s>")],
)
@pytest.mark.parametrize("context", ["", []])
@pytest.mark.parametrize("boundary", ["joint", "separate"])
@pytest.mark.parametrize("specials", [None, False])
def test_an_empty_context_becomes_bos_else_eos(
    tokens: dict[str, Any], stands_in: bytes, context: Part, boundary: str, specials: bool | None
) -> None:
    e = encoder(byte_level(**tokens))
    found = pair(e, context, "Hello", boundary=boundary, add_special_tokens=specials)
    assert (before(e, found), scored(e, found)) == (stands_in, b"Hello")
    again = pair(
        e, context, stands_in.decode() + "Hello", boundary=boundary, add_special_tokens=specials
    )
    assert again.ids.tolist() == found.ids.tolist()
    ids = pair(e, context, found.ids.tolist(), boundary=boundary, add_special_tokens=specials)
    assert ids.ids.tolist() == found.ids.tolist()
    with pytest.raises(InvalidRequest, match="nothing is left to score"):
        pair(e, context, stands_in.decode(), boundary=boundary)


def test_an_empty_context_with_neither_bos_nor_eos_says_so() -> None:
    e = encoder(byte_level(bos=None, eos=None))
    with pytest.raises(InvalidRequest, match="neither a BOS nor an EOS") as caught:
        pair(e, "", "Hello")
    assert caught.value.param == "items[0].continuations[0]"


@pytest.mark.parametrize("context", ["", [], " "])
def test_an_empty_context_and_nothing_after_it(context: Part) -> None:
    e = encoder(byte_level(add_bos=True))
    with pytest.raises(InvalidRequest, match="empty"):
        pair(e, context, "")
    found = pair(e, context, "a")
    assert scored(e, found) == b"a"
    assert before(e, found) == (b"<s> " if context == " " else b"<s>")


# --- SentencePiece ---


def test_sentencepiece_boundaries_and_bytes() -> None:
    e = encoder(sentencepiece())
    assert e.adds_bos
    found = pair(e, "true", " true")
    assert not found.merged_boundary
    assert scored(e, found) == b" true"
    assert bos_count(e, found) == 1
    emoji = pair(e, "true", " 👍🏽")
    assert scored(e, emoji) == " 👍🏽".encode()
    assert "\N{REPLACEMENT CHARACTER}" in e.pieces.text(int(emoji.ids[-1]))


@pytest.mark.parametrize("text", ["é", "👍🏽", "日本", "‘x’", "a  b\n\tc", "<s>x</s>"])
def test_pieces_join_to_the_text(text: str) -> None:
    e = encoder(byte_level())
    (ids,) = e.encode_texts([text])
    assert b"".join(map(e.pieces.piece, ids.tolist())) == text.encode()


@pytest.mark.parametrize("text", ["é", "👍🏽", "日本", "‘x’", "true true", "a  b"])
def test_sentencepiece_pieces_join_to_the_text_after_its_own_space(text: str) -> None:
    e = encoder(sentencepiece())
    (ids,) = e.encode_texts([text])
    assert b"".join(map(e.pieces.piece, ids.tolist())) == b" " + text.encode()


def test_sentencepieces_ordinary_added_tokens_are_spaces_and_special_ones_literal() -> None:
    # Gemma's runs of spaces are in its vocabulary and among its added tokens.
    vocab = {"<unk>": 0, "<▁>": 1, "▁": 2, "▁▁": 3, "a": 4, "b": 5, "<0xZZ>": 6}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "▁")], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    backend.add_tokens([AddedToken("▁▁", normalized=False, special=False)])
    backend.add_special_tokens(["<▁>"])
    e = encoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    (ids,) = e.encode_texts(["a  b<▁>"])
    assert ids.tolist() == [4, 3, 5, 1]
    assert b"".join(map(e.pieces.piece, ids.tolist())) == "a  b<▁>".encode()
    assert e.pieces.piece(6) == b"<0xZZ>"


def test_other_kinds_give_what_one_id_decodes_to() -> None:
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "play": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    e = Encoder(
        PreTrainedTokenizerFast(tokenizer_object=backend), num_embeddings=64, max_model_len=None
    )
    assert (e.pieces.text(1), e.pieces.text(9)) == ("play", "")


def test_ids_are_counted_by_what_they_decode_to() -> None:
    e = encoder(byte_level())
    (ids,) = e.encode_texts(["日é"])
    found = pair(e, [9], ids.tolist())
    assert (found.num_bytes, found.num_chars) == (5, 2)


class Sentencepieces:
    """Stands for a tokenizer of SentencePiece's own library: no Rust, and ids beyond it raise."""

    sp_model = object()
    bos_token_id, eos_token_id = 0, None
    names = ("<s>", "▁a", "<0xC3>", "<0xA9>")
    added_tokens_decoder = {0: AddedToken("<s>", special=True)}  # noqa: RUF012

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool = True) -> list[int]:
        return [0] * add_special_tokens + [1 if char == "a" else 2 for char in text]

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.names[token_id]


def test_a_tokenizer_without_rust() -> None:
    e = Encoder(Sentencepieces(), num_embeddings=64, max_model_len=None)
    assert (e.prefix_ids, e.adds_bos) == ((0,), True)
    assert pair(e, "a", "a").ids.tolist() == [0, 1, 1]
    assert [e.pieces.piece(i) for i in (0, 1, 2, 3, 9)] == [b"<s>", b" a", b"\xc3", b"\xa9", b""]


def test_mlx_lms_wrapper_is_seen_through() -> None:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    plain = byte_level(add_bos=True)
    e, wrapped = (
        encoder(plain),
        Encoder(TokenizerWrapper(plain), num_embeddings=300, max_model_len=9),
    )
    assert wrapped.prefix_ids == e.prefix_ids
    assert pair(wrapped, "Hi", " P").ids.tolist() == pair(e, "Hi", " P").ids.tolist()


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    tokenizer = byte_level()
    e = Encoder(tokenizer, num_embeddings=len(tokenizer) + 64, max_model_len=None)
    assert e.pieces.piece(len(tokenizer) + 3) == b""


# --- errors name the field and the limit ---


@pytest.mark.parametrize("bad", [-1, "rows", 10**7, 2**31, 2**63, 10**30])
@pytest.mark.parametrize("place", ["context", "continuation"])
def test_ids_outside_the_embedding(bad: Any, place: str) -> None:
    e = encoder(byte_level())
    bad = e.num_embeddings if bad == "rows" else bad
    wrong, good = [3, bad, 4], [3, 4]
    made = ScoreItem.model_construct(
        context=wrong if place == "context" else good,
        continuation=None,
        continuations=["x", wrong if place == "continuation" else good],
    )
    with pytest.raises(
        InvalidRequest, match=re.escape(f"ids 0 to {e.num_embeddings - 1}")
    ) as caught:
        encode_items(e, [made], add_special_tokens=None, boundary="joint", truncation="error")
    name = "context[1]" if place == "context" else "continuations[1][1]"
    assert caught.value.param == f"items[0].{name}"


def test_a_tokenizer_that_does_not_fit_the_weights() -> None:
    e = Encoder(byte_level(), num_embeddings=50, max_model_len=None)
    with pytest.raises(InvalidRequest, match="50 tokens"):
        pair(e, "zz", "zz")


def test_the_bad_item_is_named_among_good_ones() -> None:
    e = encoder(byte_level(), 8)
    good = ScoreItem(context="a", continuation="b")
    for bad, param in (
        (ScoreItem(context="a", continuations=["b", ""]), "items[3].continuations[1]"),
        (ScoreItem(context="a", continuation="b" * 9), "items[3].continuation"),
        (ScoreItem(context=[1] * 7 + [300], continuation="b"), "items[3].context[7]"),
        (ScoreItem.model_construct(context="\udc80", continuation="b"), "items[3].context"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            encode_items(
                e,
                [good, good, good, bad],
                add_special_tokens=None,
                boundary="joint",
                truncation="error",
            )
        assert caught.value.param == param


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_continuation(empty: Part) -> None:
    e = encoder(byte_level())
    with pytest.raises(InvalidRequest, match="empty") as caught:
        item(e, "a", "b", empty)
    assert caught.value.param == "items[0].continuations[1]"


def test_a_lone_surrogate() -> None:
    e = encoder(byte_level())
    made = ScoreItem.model_construct(context="a", continuation="b\ud800", continuations=None)
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        encode_items(e, [made], add_special_tokens=None, boundary="joint", truncation="error")
    assert caught.value.param == "items[0].continuation"


# --- lengths ---


@pytest.mark.parametrize("context_length", [1, 2, 5])
@pytest.mark.parametrize("excess", [-1, 0, 1, 2])
def test_lengths_around_the_limit(context_length: int, excess: int) -> None:
    limit = 12
    e = encoder(byte_level(), limit)
    context, continuation = [7] * context_length, [8] * (limit + excess - context_length)
    if excess <= 0:
        found = pair(e, context, continuation)
        assert len(found.ids) == limit + excess
        return
    with pytest.raises(InvalidRequest) as caught:
        pair(e, context, continuation)
    assert str(limit) in caught.value.message
    assert str(len(continuation)) in caught.value.message
    assert caught.value.code == "context_length_exceeded"
    if len(continuation) + 1 > limit:
        with pytest.raises(InvalidRequest):
            pair(e, context, continuation, truncation="left")
    else:
        found = pair(e, context, continuation, truncation="left")
        assert len(found.ids) == limit
        assert found.start == context_length - excess
        assert found.ids[found.start :].tolist() == continuation


def test_truncation_is_counted_and_the_scored_part_is_whole() -> None:
    e = encoder(byte_level(), 10)
    found = item(e, [1, 2, 3, 4, 5, 6, 7, 8], [9, 9], [9, 9, 9, 9], truncation="left")
    assert found.context_tokens == 8
    assert found.truncated_tokens == 2
    assert found.pairs[0].ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert found.pairs[1].ids.tolist() == [3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
    assert found.pairs[1].start == 6


@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_truncating_text_cuts_our_bos_first_and_moves_the_start(boundary: str) -> None:
    e = encoder(byte_level(add_bos=True), 6)
    whole = pair(e, "hello", " P", boundary=boundary, truncation="left")
    assert (before(e, whole), scored(e, whole)) == (b"hello", b" P")
    found = item(e, "hello xyz", " P", boundary=boundary, truncation="left")
    assert (found.context_tokens, found.truncated_tokens) == (10, 5)
    assert (before(e, found.pairs[0]), scored(e, found.pairs[0])) == (b"o xyz", b" P")
    with pytest.raises(InvalidRequest, match=r"11 tokens .* limit is 6"):
        pair(e, "hello xyz", " P", boundary=boundary)


def test_a_text_longer_than_the_tokenizers_own_limit_warns_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    e = encoder(byte_level(model_max_length=4))
    with caplog.at_level(logging.DEBUG):
        assert len(pair(e, "x" * 50, "y").ids) == 51
    assert not caplog.records


SENTINEL = int(1e30)


@pytest.mark.parametrize(
    ("config", "stated", "limit"),
    [
        ({"max_position_embeddings": 512}, SENTINEL, 512),
        ({"n_positions": 128}, 64, 128),
        ({"text_config": {"max_position_embeddings": 256}}, SENTINEL, 256),
        ({}, 2048, 2048),
        ({}, SENTINEL, None),
        ({"max_position_embeddings": None}, SENTINEL, None),
    ],
)
def test_the_models_own_limit(config: dict[str, Any], stated: int, limit: int | None) -> None:
    tokenizer = byte_level(model_max_length=stated)
    assert limit_from(config, tokenizer) == limit


def test_a_tokenizer_files_own_truncation_and_padding_are_off() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    e = encoder(tokenizer)
    (ids,) = e.encode_texts(["x" * 20])
    assert len(ids) == 20


def test_a_requests_distinct_texts_are_encoded_once_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = encoder(byte_level())
    calls: list[list[str]] = []
    encode = e.encode_texts

    def spy(texts: Any) -> Any:
        calls.append(list(texts))
        return encode(texts)

    monkeypatch.setattr(e, "encode_texts", spy)
    items = [ScoreItem(context="a b", continuations=[" c", " d"])] * 3
    encode_items(e, items, add_special_tokens=None, boundary="joint", truncation="error")
    assert calls == [["a b", "a b c", "a b d"]]


def test_many_threads_share_one_encoder() -> None:
    e = encoder(byte_level(add_bos=True))
    texts = [f"text {i} Answer Paris" for i in range(40)]
    alone = [pair(e, text, " world").ids.tolist() for text in texts]

    def work(_: int) -> list[list[int]]:
        return [pair(e, text, " world").ids.tolist() for text in texts * 5]

    with ThreadPoolExecutor(16) as pool:
        assert all(found == alone * 5 for found in pool.map(work, range(16)))
