"""Links out of docs/ lead to files of the repository, which the site does not contain: show their paths as code."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        if not posixpath.normpath(posixpath.join(folder, link[2])).startswith("../"):
            return link[0]
        return link[1] if link[1].startswith("`") else f"`{link[1]}`"

    return LINK.sub(replaced, markdown)
