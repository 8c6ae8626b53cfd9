"""The code blocks of all pages, and what is shown as the answer of each."""

from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    ROOT / "examples" / "README.md",
    # docs/cli.md has files that its commands read: test_command_line_docs.py runs it.
    *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "cli.md"}),
]
_BETWEEN = ("answers",)
"""How a paragraph begins that may stand between a command and its answer."""


class Block(NamedTuple):
    """A block, and the one that it answers, if that stands right before it."""

    page: str
    line: int
    language: str
    text: str
    answers: "Block | None"

    @property
    def begins(self) -> str:
        """Its first line, by which lists name it."""
        return self.text.partition("\n")[0]

    @property
    def runs(self) -> bool:
        return self.language in ("sh", "python")


def blocks(page: Path) -> list[Block]:
    """Fenced and indented ones alike."""
    found: list[Block] = []
    before: Block | None = None
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type in ("fence", "code_block"):
            before = _block(page, token, before)
            found.append(before)
        elif token.type == "inline" and not token.content.startswith(_BETWEEN):
            before = None
    return found


def _block(page: Path, token: Token, before: Block | None) -> Block:
    assert token.map is not None
    name = page.relative_to(ROOT).as_posix()
    answers = before if before and before.runs else None
    return Block(name, token.map[0] + 1, token.info.strip(), token.content, answers)


ALL = [block for page in PAGES for block in blocks(page)]
