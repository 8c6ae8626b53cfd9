"""The yes/no question that reranking asks about a document. Knows no tokens, no HTTP.

A template is text with `{query}` and `{document}` in it, and `{instruction}` if it has a use for one. What
is put in their places is never looked at: a document may hold `{query}`, or any brace.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

_PLACE = re.compile(r"\{(query|document|instruction)\}")
_NEEDED = ("{query}", "{document}")

_PLAIN = """{instruction}.

Document: {document}

Query: {query}

Question: Does the document answer the query? Answer Yes or No.
Answer:"""

# As the model's own card documents it.
_QWEN3_RERANKER = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True)
class Question:
    """How a model is asked whether a document is what a query looks for."""

    template: str
    yes: str
    """The answer that counts, as it follows the template: with a space in front, if need be."""
    no: str

    @property
    def takes_instruction(self) -> bool:
        return "{instruction}" in self.template

    def ask(self, query: str, document: str, instruction: str | None) -> str:
        """The question about one document."""
        values = {
            "query": query,
            "document": document,
            "instruction": DEFAULT_INSTRUCTION if instruction is None else instruction,
        }
        return _fill(self.template, values)


def question_for(root: str, template: str | None) -> Question:
    """The question for a model, by its folder's name or hub id; `template` is the operator's own.

    Qwen3-Reranker, in any size, quantisation or fine-tune that keeps its name, was trained on one form
    and on the answers "yes" and "no"; any other model is asked in plain text.
    """
    name = root.lower()
    trained = "qwen3" in name and "reranker" in name
    chosen = template or (_QWEN3_RERANKER if trained else _PLAIN)
    space = "" if chosen[-1].isspace() else " "
    yes, no = ("yes", "no") if trained else ("Yes", "No")
    return Question(chosen, space + yes, space + no)


def read_template(value: str) -> str:
    """A template as an operator gives it: itself, or the path of a file that holds it.

    Raises ValueError with what is wrong. A file's last line break is left out: editors add it.
    """
    if all(place in value for place in _NEEDED):
        return value
    try:
        text = Path(value).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no possible path
        raise ValueError(
            "must hold {query} and {document}, or be the path of a text file that does"
        ) from error
    missing = [place for place in _NEEDED if place not in text]
    if missing:
        raise ValueError(f"must name a file that holds {' and '.join(missing)}")
    return text


def _fill(template: str, values: Mapping[str, str]) -> str:
    # In one pass, so that what was put in is not searched again.
    return _PLACE.sub(lambda found: values[found[1]], template)
