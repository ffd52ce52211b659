"""Makes one C++ file out of the C++ blocks of the documentation's pages.

    code_blocks.py OUTPUT PAGE...

Every ```cpp block becomes a function, in a namespace of its page. context.h declares
the names that all blocks may use (model, input, optimizer, ...). The #include lines of
a block go to the top of the file. HTML comments, which readers do not see, add more:

    <!-- cpp            C++ outside of functions, for the blocks after it
    struct Batch { ... };
    -->
    <!-- cpp: global -->      the next block is outside of functions, so that later
                              blocks can use its declarations
    <!-- cpp: continued -->   the next block continues the function of the block
                              before it
    <!-- cpp: run -->         the next block also runs, as a test. In a whole program,
                              `int main()` runs
    <!-- cpp: then            C++ at the end of the block before it, for example the
    EXPECT_EQ(...);           expectations of its test
    -->

A block that is not C++ has another language, or none. check_pages.py reports blocks
without `cpp` that look like C++.
"""

import pathlib
import re
import sys

import pages

_NOTES = ("", "global", "continued", "run")


def identifier(name):
    """Returns the name of a page as a C++ identifier, without its `.md`."""
    return re.sub(r"\W", "_", name.removesuffix(".md"))


def split_includes(text):
    """Returns the #include lines, and the text with these lines emptied."""
    includes, rest = [], []
    for line in text.split("\n"):
        is_include = line.lstrip().startswith("#include")
        includes += [line.strip()] if is_include else []
        rest.append("" if is_include else line)
    return includes, "\n".join(rest)


class Page:
    """The C++ of one page."""

    def __init__(self, name, text):
        self.name = name
        self.includes = []
        self.out = []
        self.blocks = 0
        self.open = None  # (function, line, note) of the function that is not closed yet
        items, _ = pages.parse(name, text)
        for item in items:
            if isinstance(item, pages.Hidden):
                if item.then and not self.open:
                    raise pages.PageError(f"{name}:{item.line}: no block precedes `cpp: then`")
                if not item.then:
                    self.close()
                self.add(item)
            elif item.language == "cpp":
                self.block(item)
        self.close()

    def add(self, item):
        includes, text = split_includes(item.text)
        self.includes += includes
        self.out.append(f'#line {item.line} "{self.name}"\n{text}')

    def block(self, item):
        if item.note not in _NOTES:
            raise pages.PageError(
                f"{self.name}:{item.line}: `cpp: {item.note}` is not one of {_NOTES[1:]}")
        self.blocks += 1
        whole = re.search(r"^int main\(", item.text, re.MULTILINE)
        if item.note == "continued":
            if not self.open:
                raise pages.PageError(f"{self.name}:{item.line}: no block precedes `cpp: continued`")
            self.add(item)
        elif whole:
            self.close()
            space = f"line_{item.line}"
            self.out.append(f"namespace {space} {{")
            item.text = item.text.replace("int main(", "int example(")
            # Unlike main(), example() must return 0 explicitly.
            body = item.text.rstrip()
            if body.endswith("}") and "return 0;" not in body:
                item.text = body[:-1] + " return 0; }\n"
            self.add(item)
            self.out.append("}")
            if item.note == "run":
                self.test(item.line, f"EXPECT_EQ({space}::example(), 0);")
        elif item.note == "global":
            self.close()
            self.add(item)
        else:
            self.close()
            self.open = (f"line_{item.line}", item.line, item.note)
            self.out.append(f"inline void line_{item.line}() {{")
            self.add(item)

    def test(self, line, body):
        self.out.append(f"TEST({identifier(self.name)}, line_{line}_runs) {{ {body} }}")

    def close(self):
        if self.open:
            function, line, note = self.open
            self.out.append("}")
            if note == "run":
                self.test(line, f"{function}();")
            self.open = None

    def cpp(self):
        inner = "\n".join(self.out)
        return f"namespace docs::{identifier(self.name)} {{\n{inner}\n}}\n"


def generate(texts):
    """Returns the text of the C++ file. `texts`: page name -> text."""
    result = [Page(name, text) for name, text in texts.items()]
    includes = {line: None for page in result for line in page.includes}
    lines = ['#include <gtest/gtest.h>', '#include "docs/testing/context.h"', *includes]
    lines += [page.cpp() for page in result if page.out]
    blocks = sum(page.blocks for page in result)
    # This test fails if no block was found.
    lines.append(f"TEST(docs, compiles_the_blocks_of_all_pages) {{ EXPECT_GT({blocks}, 0); }}")
    return "\n".join(lines) + "\n"


def main():
    output, *names = sys.argv[1:]
    texts = {name: pathlib.Path(name).read_text(encoding="utf-8") for name in sorted(names)}
    try:
        pathlib.Path(output).write_text(generate(texts), encoding="utf-8")
    except pages.PageError as error:
        raise SystemExit(error) from None


if __name__ == "__main__":
    main()
