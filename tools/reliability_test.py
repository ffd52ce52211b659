#!/usr/bin/env python3
"""Checks that the tests which docs/reliability.md names exist.

Each case has a paragraph that begins with its number, `**12. ...`, and names its
tests in backquotes: a target, then tests of it (none for a fuzz test). All of them
must be in the sources. Each number from 1 to 56 must appear once, with a test or the
words "No test".

Run it with Bazel or alone. It follows Bazel's link to the page to find the sources.
Bazel does not know these dependencies and so runs the test every time.
"""

import pathlib
import re
import sys

CASES = 56
PAGE = "docs/reliability.md"


def attributes(build, kinds, name):
    """Returns the text of a target's attributes. None if no target of `kinds` has the name."""
    rule = re.search(
        r"^(%s)\(\n    name = \"%s\",\n(.*?)^\)" % (kinds, re.escape(name)),
        build,
        re.MULTILINE | re.DOTALL,
    )
    return rule.group(2) if rule else None


def sources_of(root, target):
    """Returns the text of a test target's sources, or None if there is no such target."""
    package, name = target[2:].split(":")
    build = root / package / "BUILD"
    if not build.is_file():
        return None
    build = build.read_text(encoding="utf-8")
    test = attributes(
        build, "gpipe_cc_test|gpipe_device_test|gpipe_fuzz_test|python_test", name
    )
    if test is None:
        return None
    if "srcs = []" in test:  # a library of tests has the sources
        name = re.search(r'":(\w+)"', test).group(1)
        test = attributes(build, "gpipe_cc_test_library", name)
    listed = re.search(r"srcs = \[(.*?)\]|main = (\S+)", test, re.DOTALL)
    files = re.findall(r'"([^"]+)"', listed.group(0)) if listed else [name + ".cc"]
    return "".join(
        (root / package / file).read_text(encoding="utf-8") for file in files
    )


def has_test(text, suite, name):
    return re.search(
        r"^TEST(_F|_P)?\(\s*%s,\s*%s\s*\)" % (suite, name), text, re.MULTILINE
    )


def problems(root, page):
    """Returns a line for each problem of the page, and the number of tests it names."""
    found = []
    cases = []
    named = set()
    for paragraph in re.split(r"\n\s*\n", page):
        target, tests = None, 0
        for word in re.findall(r"`([^`]+)`", paragraph):
            if re.fullmatch(r"//[\w/]*:\w+", word):
                target, text = word, sources_of(root, word)
                tests += text is not None
                if text is None:
                    found.append(f"there is no test {word}")
            elif re.fullmatch(r"\w*Test\.\w+|[A-Z]\w+\.[A-Z]\w+", word):
                named.add(word)
                suite, name = word.split(".")
                if target is None:
                    found.append(f"{word} has no target before it")
                elif text is not None and not has_test(text, suite, name):
                    found.append(f"{target} has no {word}")
        case = re.match(r"\*\*(\d+)\. ", paragraph)
        if case:
            cases.append(int(case.group(1)))
            if tests == 0 and "No test" not in paragraph:
                found.append(f"case {cases[-1]} has neither a test nor a reason")
    if cases != list(range(1, CASES + 1)):
        found.append(f"the cases are {cases}, not 1 to {CASES} in order")
    return found, len(named)


def main():
    here = pathlib.Path(__file__).parent.parent / PAGE
    page = here.resolve()
    found, named = problems(page.parent.parent, page.read_text(encoding="utf-8"))
    for line in found:
        print(f"{PAGE}: {line}", file=sys.stderr)
    print(f"{PAGE} names {named} tests; {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
