"""Small real tokenizers, built in memory: byte-level BPE and SentencePiece-like ones."""

from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(
    *,
    bos: str | None = BOS,
    eos: str | None = EOS,
    add_bos: bool = False,
    add_eos: bool = False,
    merges: tuple[tuple[str, str], ...] = (
        ("A", "n"),
        ("w", "e"),
        ("we", "r"),
        ("An", "s"),
        ("Ans", "wer"),
        ("Ġ", "P"),
        ("l", "d"),
    ),
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: each byte a token, and "Answer", "wer", " P", "ld" on top."""
    specials = [token for token in (bos, eos) if token is not None]
    vocab = {token: i for i, token in enumerate([*specials, *_alphabet()])}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, bos, eos, add_bos, add_eos, options)


def sentencepiece(*, add_bos: bool = True, **options: Any) -> PreTrainedTokenizerFast:
    """SentencePiece-like: a space before the first word, byte fallback; "▁true" and "true" both exist."""
    pieces = ["<unk>", BOS, EOS, *(f"<0x{i:02X}>" for i in range(256))]
    pieces += [*"▁etru", "tr", "ue", "true", "▁true"]
    merges = [("t", "r"), ("u", "e"), ("tr", "ue"), ("▁", "true")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(tokenizer, BOS, EOS, add_bos, False, options)


def lowercasing() -> PreTrainedTokenizerFast:
    """Reads capitals as small letters: what it decodes is not what it was given."""
    tokenizer = byte_level(merges=())
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def _wrap(
    tokenizer: Tokenizer,
    bos: str | None,
    eos: str | None,
    add_bos: bool,
    add_eos: bool,
    options: dict[str, Any],
) -> PreTrainedTokenizerFast:
    specials = [token for token in (bos, eos) if token is not None]
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if add_bos or add_eos:
        template = (f"{bos} " if add_bos else "") + "$A" + (f" {eos}" if add_eos else "")
        used = [(s, tokenizer.token_to_id(s)) for s in specials]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=used
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, unk_token=None, **options
    )
