#!/usr/bin/env python3
"""Checks that each case of docs/reliability.md has tests which exist.

    tools/reliability_test.py         # checks, as //tools:reliability_test does
    tools/reliability_test.py 12      # prints the commands that run the tests of case 12

A case is a paragraph of the page that begins with its number, `**12. ...`. The cases are
in order, and a letter may follow a number (43, 43a, 44). docs/reliability_tests.txt has a
line for each test: case, target, test. All tests must be in the sources of their target.

Bazel does not know the sources as inputs of this test, so it runs the test every time.
"""

import pathlib
import re
import sys

PAGE = "docs/reliability.md"
TESTS = "docs/reliability_tests.txt"


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


def cases_of(page):
    return re.findall(r"^\*\*(\d+[a-z]?)\. ", page, re.MULTILINE)


def tests_of(text):
    """Returns (case, target, test or "") of each line that is no comment."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [(words + [""])[:3] for words in lines if words]


def problems(root, page, tests):
    """Returns a line for each problem of the page and its tests."""
    found = []
    cases = cases_of(page)
    in_order = sorted(set(cases), key=lambda case: (int(re.match(r"\d+", case)[0]), case))
    numbers = {int(case) for case in cases if case.isdigit()}
    if cases != in_order or numbers != set(range(1, len(numbers) + 1)):
        found.append(f"{PAGE}: the cases are {cases}, not 1, 2, ... in order")
    tested = {case for case, _, _ in tests}
    found += [f"{TESTS}: case {case} has no test" for case in cases if case not in tested]
    found += [f"{PAGE}: there is no case {case}" for case in sorted(tested - set(cases))]
    sources = {target: sources_of(root, target) for _, target, _ in tests}
    for case, target, test in tests:
        text = sources[target]
        if text is None:
            found.append(f"{TESTS}: case {case}: there is no test {target}")
        elif test and not has_test(text, *test.split(".")):
            found.append(f"{TESTS}: case {case}: {target} has no {test}")
    return found


def commands(tests, case):
    """Returns the commands that run the tests of a case."""
    names = {}
    for _, target, test in (line for line in tests if line[0] == case):
        names.setdefault(target, []).append(test)
    return [
        f"./bazelw test {target}"
        + (f" --test_filter='{':'.join(some)}'" if all(some) else "")
        for target, some in names.items()
    ]


def main():
    # Under Bazel the page is a link into the source tree.
    page = (pathlib.Path(__file__).parent.parent / PAGE).resolve()
    root = page.parent.parent
    tests = tests_of((root / TESTS).read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        found = commands(tests, sys.argv[1])
        if not found:
            raise SystemExit(f"reliability_test: {PAGE} has no case {sys.argv[1]}")
        print("\n".join(found))
        return 0
    found = problems(root, page.read_text(encoding="utf-8"), tests)
    print("\n".join(found), file=sys.stderr)
    print(f"{TESTS} names {len(tests)} tests; {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
