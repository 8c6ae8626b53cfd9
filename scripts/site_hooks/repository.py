"""The site is made of the repository's own pages, which people also read where the repository is hosted.

So links between them are written as paths in the repository, and translated here: a page of docs/ stands at
the site's top, README.md is its first page, what lies elsewhere (SECURITY.md, examples/) keeps its path.
A link that leads nowhere stays as it is, and `mkdocs build --strict` fails on it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
FOLDERS = ["examples"]

# Where the repository is hosted, a bar within a cell's code is escaped; Python-Markdown would show that.
_CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    folders = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*"))]
    for path in [*(ROOT / page for page in PAGES), *folders]:
        if path.is_file():
            at = _in_site(path.relative_to(ROOT).as_posix())
            files.append(File.generated(config, at, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate a page's links."""
    markdown = _CODE.sub(lambda code: code[0].replace("\\|", "|"), markdown)
    source = page.file.abs_src_path
    if source is None:  # made while building, with links of the site's own
        return markdown
    folder = posixpath.dirname(Path(source).relative_to(ROOT).as_posix())
    here = posixpath.dirname(page.file.src_uri)

    def translated(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if (ROOT / target).is_dir():
            target += "/README.md"
        at = _in_site(target)
        found = files.get_file_from_path(at)
        return link[1] if found is None else posixpath.relpath(at, here or ".")

    return _LINK.sub(translated, markdown)


def _in_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")
