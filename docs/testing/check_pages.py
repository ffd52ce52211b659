"""Checks that everything that the documentation's pages name exists.

    check_pages.py PAGE...

It checks targets (//x:y), tests (Suite.Name), configurations (--config=x), links between
pages with their headings, and in commands the flags of our programs and the options of
our scripts. It also checks that no block of C++ lacks its language: such a block would
not be compiled.

It reads the pages and all BUILD files in the source tree. Bazel cannot declare these
files as inputs of a test, so Bazel never uses a cached result of this test.
"""

import itertools
import pathlib
import re
import sys

import pages

_LABEL = re.compile(r"(?<![\w:/.])(?:@gpipe)?//((?:[\w.-]+/)*[\w.-]*)(:[\w.-]*)?")
_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
# Flags of gflags, rows of training/program/options.inc, and sizes of models/named.cc.
_FLAG = re.compile(r"\bDEFINE_\w+\(\s*(\w+)\s*,|^OPTION\([\w:]+, (\w+),"
                   r"|\{\"(\w+)\", &ModelOptions::", re.MULTILINE)
_GFLAGS = {"help", "helpfull", "helpshort", "version", "flagfile"}
# Flags of glog, in programs that log.
_GLOG = {"v", "vmodule", "logtostderr", "minloglevel", "stderrthreshold"}


class Tree:
    """The source tree: its targets, tests, flags and files."""

    def __init__(self, root):
        self.root = root
        self._sources = None

    def has_target(self, package, name):
        """Returns whether a rule or a file has this name, or the name means all targets
        (`...`, `:all`).
        """
        if package == "..." or package.endswith("/..."):
            return (self.root / package[:-3]).is_dir()
        build = self.root / package / "BUILD"
        if not build.exists():
            return False
        if name in ("all", "*"):
            return True
        text = build.read_text(encoding="utf-8")
        if name == ":":
            return True  # `//package:`, whose names are in a table
        # gpipe_device_test makes one test for each kind of device.
        stem = re.sub(r"_(cpu|simulated|cuda)$", "", name)
        return (re.search(rf'\bname = "({re.escape(name)}|{re.escape(stem)})"', text)
                is not None or (self.root / package / name).is_file())

    def sources(self):
        """Returns (defined flags, tests as Suite.Name) of all C++ files. Reads them once."""
        if self._sources is None:
            flags, tests = set(_GFLAGS | _GLOG), set()
            # Not even a look into Bazel's folders, which change meanwhile.
            folders = [folder for folder in self.root.iterdir()
                       if folder.is_dir() and not folder.name.startswith((".", "bazel-"))]
            for path in itertools.chain(*(folder.rglob("*.*") for folder in folders)):
                if path.suffix not in (".cc", ".inc"):
                    continue
                text = path.read_text(encoding="utf-8")
                flags.update(filter(None, itertools.chain(*_FLAG.findall(text))))
                tests.update(map(".".join, _TEST.findall(text)))
            self._sources = flags, tests
        return self._sources

    def flags(self):
        return self.sources()[0]

    def tests(self):
        return self.sources()[1]

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")


def code_of(text):
    """Yields (line number, code) of each code line and of each text in `...`.

    Code lines are those of fenced and of indented blocks.
    """
    fence, before = False, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif fence or (line.startswith("    ") and not before.startswith("-")):
            yield number, line
        else:
            for word in re.findall(r"`([^`]+)`", line):
                yield number, word
        before = line if line.strip() else before


def check_labels(text, tree):
    for number, line in code_of(text):
        if "::" in line or line.lstrip().startswith("//") and " " in line.strip():
            continue  # C++ or a C++ comment
        for package, name in _LABEL.findall(line):
            if not package and not name:
                continue
            if not tree.has_target(package, name.removeprefix(":") or name or package.split("/")[-1]):
                yield number, f"there is no target //{package}{name}"


def check_tests(text, tree):
    for number, word in code_of(text):
        is_test = re.fullmatch(r"(\w*Test|[A-Z][a-z]\w*)\.[A-Z]\w+", word)
        if is_test and word not in tree.tests():
            yield number, f"there is no test {word}"


def commands_of(text):
    """Yields (line number, command). Joins lines that end in a backslash."""
    whole, start = "", 0
    for number, line in code_of(text):
        start = start if whole else number
        whole += line.rstrip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            whole += " "
            continue
        yield start, whole.split(" #")[0]
        whole = ""


def script_text(tree, path):
    """Returns the text of a script, and of the modules of compare_peers that it uses."""
    text = tree.text(path)
    for module in re.findall(r"^import (\w+)", text, re.MULTILINE):
        file = f"benchmarks/peers/{module}.py"
        if (tree.root / file).is_file():
            text += tree.text(file)
    return text


def check_options(text, tree):
    for number, command in commands_of(text):
        for name in re.findall(r"--config=(\w+)", command):
            if not re.search(rf"^\w+:{name} ", tree.text(".bazelrc"), re.MULTILINE):
                yield number, f".bazelrc has no config {name}"
        # Arguments after `--`, or after the path of a program, go to one of our programs.
        program = re.search(r"bazelw run .*?//\S+ -- (.*)", command)
        path = re.search(r"bazel-bin/((?:examples|tools|benchmarks)/\w+) ?(.*)", command)
        given = program.group(1) if program else path.group(2) if path else ""
        for name in re.findall(r"(?<!\S)--(\w+)", given):
            if name not in tree.flags():
                yield number, f"none of our programs has the flag --{name}"
        script = re.match(r"\s*((?:tools|\.ci)/\w+(?:\.sh)?) (.*)", command)
        if script and (tree.root / script.group(1)).is_file():
            for name in re.findall(r"(?<!\S)--([\w-]+)", script.group(2)):
                is_bazels = name in ("jobs", "config", "disk_cache", "nobuild")
                if not is_bazels and f"--{name}" not in script_text(tree, script.group(1)):
                    yield number, f"{script.group(1)} has no option --{name}"


def anchors(text):
    """Returns the anchors that GitHub makes of the headings of a page."""
    _, prose = pages.parse("", text)
    found = set()
    for line in prose:
        heading = re.match(r"#+ (.*)", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def check_links(name, text, tree):
    _, prose = pages.parse(name, text)
    # A link may span two lines.
    for match in re.finditer(r"\]\(([^)\s]+)\)", "\n".join(prose)):
        number = "\n".join(prose).count("\n", 0, match.start()) + 1
        target, _, anchor = match.group(1).partition("#")
        if re.match(r"\w+:", target):
            continue  # another site
        path = (tree.root / name).parent / target if target else tree.root / name
        if not path.exists():
            yield number, f"there is no {target}"
        elif anchor and path.suffix == ".md":
            if anchor not in anchors(path.read_text(encoding="utf-8")):
                yield number, f"{target or 'this page'} has no heading #{anchor}"


def check_languages(name, text):
    """Finds C++ in blocks of another language, by its semicolons and includes."""
    blocks, prose = pages.parse(name, text)
    for block in blocks:
        if isinstance(block, pages.Block) and block.language in ("", "text"):
            for number, line in enumerate(block.text.split("\n"), block.line):
                if re.search(r";\s*(//.*)?$|^#include", line):
                    yield number, "this looks like C++, in a block that is not ```cpp"
        elif isinstance(block, pages.Block) and block.language in ("c++", "c", "C++"):
            yield block.line, f"write ```cpp instead of {block.language}, so that it is compiled"
    for number, line in enumerate(prose, 1):
        if re.match(r"    .*;\s*(//.*)?$", line):
            yield number, "this looks like C++, but is no ```cpp block"


def check(name, text, tree):
    """Yields (line number, problem) for each problem of a page."""
    yield from check_languages(name, text)
    yield from check_labels(text, tree)
    yield from check_tests(text, tree)
    yield from check_options(text, tree)
    yield from check_links(name, text, tree)


def main():
    # Bazel runs this file through a link; resolve() returns its path in the source tree.
    tree = Tree(pathlib.Path(__file__).resolve().parents[2])
    wrong = 0
    for name in sys.argv[1:]:
        for number, problem in check(name, tree.text(name), tree):
            print(f"{name}:{number}: {problem}")
            wrong += 1
    if len(sys.argv) < 2:
        raise SystemExit("check_pages: no page was given; usage: check_pages.py PAGE...")
    print(f"{len(sys.argv) - 1} pages, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
