"""Links out of docs/ lead to files of the repository, which the site does not contain: show their paths as code."""

import re

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    return OUTSIDE.sub(lambda link: link[1] if link[1].startswith("`") else f"`{link[1]}`", markdown)
