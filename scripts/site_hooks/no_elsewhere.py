"""The site loads nothing from elsewhere: it works without internet, and tells nobody who reads it."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|icon))[^>]*\bhref=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|@import\s+["']?(?:url\()?["']?(?:https?:)?//[^"');]+"""
    # What the theme's search takes where a page is opened from a folder.
    r"""|https://unpkg\.com/iframe-worker[^"'\s]*"""
)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail where a page or a style sheet names a file of another host."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        text = path.read_text("utf-8") if path.suffix in (".html", ".css") else ""
        if found := _LOADED.search(text):
            raise PluginError(f"{path.name} loads a file from elsewhere: {found[0]}")
