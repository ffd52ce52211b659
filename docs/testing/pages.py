"""What a page of the documentation is made of: text, and blocks of code.

For the tests of the pages; Markdown as far as these pages use it.
"""

import dataclasses
import re

_FENCE = re.compile(r"^(\s*)(`{3,})\s*([\w+-]*)\s*$")


@dataclasses.dataclass
class Block:
    """Lines between two fences. `line` is that of the first of them, from 1."""

    language: str
    line: int
    text: str
    # What a hidden comment `<!-- cpp: WORD -->` says of the block after it.
    note: str = ""


@dataclasses.dataclass
class Hidden:
    """`<!-- cpp` and more lines: C++ for the blocks of the page, not shown.

    `then`: the comment begins with `<!-- cpp: then`.
    """

    line: int
    text: str
    then: bool = False


class PageError(Exception):
    """What is wrong with a page, with its name and line."""


def parse(name, text):
    """The blocks and hidden C++ of a page, in order, and its lines without them.

    Lines keep their numbers: those of a block or a comment are empty.
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
