"""Links from documents to files outside of docs/, for the site.

GitHub follows a link such as `../conf/broker.yaml`. For each file that is linked so, also from such
pages, the site gets a page `source/conf/broker.yaml.md` with the file's text. A link to a folder
becomes plain text. A link to a missing file is a warning, which fails a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.source_links")

ROOT = Path(__file__).parents[2]
SOURCE = "source/"
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".yml": "yaml", ".csv": "text"}


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for each file outside of docs/ that a page links to."""
    pending = [
        (_path_of(file.src_uri), file.content_string) for file in files.documentation_pages()
    ]
    while pending:
        path, text = pending.pop()
        for target in _targets(path, text):
            uri = _uri_of(target)
            if target.startswith("docs/") or files.get_file_from_path(uri) is not None:
                continue
            if (ROOT / target).is_file():
                content = (ROOT / target).read_text(encoding="utf-8")
                page = content if target.endswith(".md") else _as_page(target, content)
                head = "---\nsearch:\n  exclude: true\n---\n"
                files.append(File.generated(config, uri, content=head + page))
                if target.endswith(".md"):
                    pending.append((target, content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to the pages that `on_files` has added."""
    del config
    here = page.file.src_uri
    path = _path_of(here)

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match["target"]))
        is_outside = here.startswith(SOURCE) or not target.startswith("docs/")
        if not is_outside:
            return match[0]
        if files.get_file_from_path(_uri_of(target)) is not None:
            link = posixpath.relpath(_uri_of(target), posixpath.dirname(here) or ".")
            return f"[{match['text']}]({link}{match['anchor'] or ''})"
        if not (ROOT / target).exists():
            log.warning("Doc file '%s' has a link to '%s', which does not exist.", here, target)
        return match["text"]

    return _outside_of_code(markdown, lambda text: LINK.sub(replaced, text))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for block in CODE.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def _targets(path: str, text: str) -> set[str]:
    folder = posixpath.dirname(path)
    links = LINK.finditer(CODE.sub("", text))
    return {posixpath.normpath(posixpath.join(folder, link["target"])) for link in links}


def _path_of(uri: str) -> str:
    """Return a page's path in the checkout."""
    if not uri.startswith(SOURCE):
        return f"docs/{uri}"
    path = uri.removeprefix(SOURCE)
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _uri_of(path: str) -> str:
    """Return the page of a file of the checkout."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{SOURCE}{path}" if path.endswith(".md") else f"{SOURCE}{path}.md"


def _as_page(path: str, content: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n~~~~~~ {language}\n{content}\n~~~~~~\n"
