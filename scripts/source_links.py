"""mkdocs hook: links from a document to a file of the repository outside docs/.

On a code host such a link opens the file. The site holds documents only, so that there the link's text remains. A link
to a file that does not exist is a warning, which `mkdocs build --strict` turns into a failure.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.source_links")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """`markdown` of one page, with the text alone of each link that leaves docs/."""
    folder = (Path(config["docs_dir"]) / page.file.src_path).parent
    return LINK.sub(lambda link: _shown(link, folder, Path(config["docs_dir"]), page.file.src_path), markdown)


def _shown(link: re.Match[str], folder: Path, documents: Path, page: str) -> str:
    text, target = link[1], link[2]
    if "://" in target:
        return link[0]
    path = (folder / target).resolve()
    if path.is_relative_to(documents.resolve()):
        return link[0]
    if not path.exists():
        log.warning("%s links to %s, which does not exist", page, target)
    name = str(path.relative_to(documents.resolve().parent))
    return text if text.startswith("`") else f"`{name}`" if text in name else f"{text} (`{name}`)"
