"""Adds pages to the site that are not in docs/, because readers expect them elsewhere in the repository.
mkdocs.yml names this file as a hook.

    README.md           index.md
    CONTRIBUTING.md     contributing.md
    CHANGELOG.md        changelog.md
    csrc/README.md      kernels.md

Links between them and the pages of docs/ are rewritten. A link to any other file of the repository becomes
its name, since the site does not have the file. A site that loads anything from another host is refused.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "csrc/README.md": "kernels.md",
}
_SOURCES = {page: source for source, page in ELSEWHERE.items()}
# What a browser loads without a click.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//[^"]*|"""
    r"""<link(?=[^>]*\srel="?(?:stylesheet|preload|preconnect|icon))[^>]*\shref="(?:https?:)?//[^"]*|"""
    r"""url\(["']?https?://[^)]*"""
)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in ELSEWHERE.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to the places of their targets in the site."""
    source = _SOURCES.get(page.file.src_path, f"docs/{page.file.src_path}")
    return _LINK.sub(lambda found: _rewritten(found, posixpath.dirname(source)), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise PluginError if a page or a style sheet would load anything from another host."""
    site = Path(config.site_dir)
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        if found := _FETCHED.search(path.read_text()):
            raise PluginError(f"{path.relative_to(site)} loads from another host: {found[0][-100:]}")


def _rewritten(found: re.Match[str], folder: str) -> str:
    mark, text, target, anchor = found.groups()
    if not target:
        return found[0]
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in ELSEWHERE:
        path = ELSEWHERE[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return f"{text} (`{path}`)"
    return f"{mark}[{text}]({path}{anchor or ''})"
