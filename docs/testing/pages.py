"""Splits a page of the documentation into prose and blocks of code.

Used by the tests of the pages. Supports the part of Markdown that the pages use.
"""

import dataclasses
import re

_FENCE = re.compile(r"^(\s*)(`{3,})\s*([\w+-]*)\s*$")


@dataclasses.dataclass
class Block:
    """The lines between two fences. `line`: number of the first of them, from 1."""

    language: str
    line: int
    text: str
    # The WORD of the hidden comment `<!-- cpp: WORD -->` before the block.
    note: str = ""


@dataclasses.dataclass
class Hidden:
    """A hidden comment `<!-- cpp` with lines of C++ for the blocks of the page.

    `then`: whether the comment begins with `<!-- cpp: then`.
    """

    line: int
    text: str
    then: bool = False


class PageError(Exception):
    """An error in a page. Its text has the page's name and the line."""


def parse(name, text):
    """Returns the blocks and hidden C++ of a page, in order, and its other lines.

    Lines keep their numbers: the lines of a block or a comment are empty. Raises
    PageError if a block or a comment has no end, or a note has no block.
    """
    lines = text.split("\n")
    prose = list(lines)
    items = []
    note = ""
    k = 0
    while k < len(lines):
        fence = _FENCE.match(lines[k])
        if fence:
            indent, ticks, language = fence.groups()
            end = k + 1
            while end < len(lines) and lines[end].strip() != ticks:
                end += 1
            if end == len(lines):
                raise PageError(f"{name}:{k + 1}: the block has no end")
            body = [line[len(indent):] for line in lines[k + 1:end]]
            items.append(Block(language, k + 2, "\n".join(body) + "\n", note))
            note = ""
        elif lines[k].startswith("<!-- cpp"):
            end = k
            while "-->" not in lines[end]:
                end += 1
                if end == len(lines):
                    raise PageError(f"{name}:{k + 1}: the comment has no end")
            if note:
                raise PageError(f"{name}:{k + 1}: no block follows `cpp: {note}`")
            then = lines[k].strip() == "<!-- cpp: then"
            if lines[k].startswith("<!-- cpp:") and not then:
                note = lines[k][len("<!-- cpp:"):].split("-->")[0].strip()
            else:
                items.append(Hidden(k + 2, "\n".join(lines[k + 1:end]) + "\n", then))
        else:
            k += 1
            continue
        prose[k:end + 1] = [""] * (end + 1 - k)
        k = end + 1
    if note:
        raise PageError(f"{name}: no block follows `cpp: {note}`")
    return items, prose
