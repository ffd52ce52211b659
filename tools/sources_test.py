#!/usr/bin/env python3
"""Rules for all sources of this tree that no compiler checks:

- only gpipe/libtorch asks for LibTorch's version;
- no two types have the same name in the same namespace (C++ allows that in two files,
  but a program that links both has undefined behaviour);
- tools/public_headers.cc, which is compiled with more warnings, has all public headers;
- files that comments and pages name exist;
- packages depend on each other as the two blocks of "The folders" in
  docs/architecture.md say;
- all files that name gpipe's version name the same one;
- globs of macros may be empty, which is an error since Bazel 8 unless they say so.
"""

import collections
import pathlib
import re
import sys
import unittest

VERSION_FOLDER = "gpipe/libtorch/"

# A condition of the preprocessor on LibTorch's version.
VERSION_CONDITION = re.compile(r"^\s*#\s*(el)?if.*\bTORCH_VERSION", re.MULTILINE)

# What cannot contain a definition: comments, literals, directives.
_NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
_NAMESPACE = re.compile(r"\bnamespace(?:\s+([\w:]+))?\s*$")
_TYPE = re.compile(r"(?:^|[;}\s>])(?:class|struct|union|enum(?:\s+class)?)\s+"
                   r"(?:\[\[\w+\]\]\s*)?(\w+)\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)

# Rules that make something only tests use. A package with default_testonly has no other.
_TEST_RULE = re.compile(r"^\w*(test|test_library|test_suite)\($", re.MULTILINE)


# A file that a comment or a page names. Those of other projects and of examples are none.
_FILE = re.compile(r"(?<![\w/.<*-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:h|cc))\b")
_NOT_OURS = re.compile(r"(torch|tensorflow|a|folder)/|(.*/)?x(_\w+)?\.|(file|nccl|jpeglib)\.")


def folders(root):
    """The folders of this tree without those of Bazel, which change meanwhile."""
    return [folder for folder in root.iterdir() if folder.is_dir() and
            not folder.name.startswith((".", "bazel-"))]


def sources(root):
    """The C++ files of this tree, relative to `root`."""
    return sorted(str(file.relative_to(root)) for folder in folders(root)
                  for file in folder.rglob("*.*") if file.suffix in (".cc", ".h"))


def types_of(text):
    """The types that a file defines at namespace scope, as "a::b::Name". Those of
    unnamed namespaces belong to the file alone and are left out."""
    text = _NO_CODE.sub(lambda match: "\n" if match[0].startswith("#") else " ", text)
    found = []
    scopes = []  # of each open brace: a namespace's name, or None for any other
    statement = ""
    for piece in re.split(r"([{};])", text):
        if piece == "{":
            namespace = _NAMESPACE.search(statement)
            if namespace:
                scopes.append(namespace[1] or "")
            else:
                kind = _TYPE.search(statement)
                if kind and all(scopes) and "template <>" not in statement:
                    found.append("::".join(scopes + [kind[1]]))
                scopes.append(None)
            statement = ""
        elif piece == "}":
            if scopes:
                scopes.pop()
            statement = ""
        elif piece == ";":
            statement = ""
        else:
            statement += piece
    return found


def unknown_files(text, is_page, files):
    """The files that the comments of a source, or a page, name, and that are not the end
    of a path in `files`."""
    lines = text.splitlines()
    if not is_page:
        lines = [line.split("//", 1)[1] for line in lines if re.match(r"\s*//|.*\s//\s", line)]
    paths = {"/" + path for path in files}
    return [name for line in lines for name in _FILE.findall(line)
            if not _NOT_OURS.match(name) and
            not any(path.endswith("/" + name) for path in paths)]


def twins(files):
    """Types that more than one of `files` (name: text) defines: {type: names}."""
    places = collections.defaultdict(list)
    for name, text in files.items():
        for kind in types_of(text):
            places[kind].append(name)
    return {kind: names for kind, names in places.items() if len(names) > 1}


def statements(text):
    """The calls of a BUILD file, each with its comments."""
    found, lines, depth = [], [], 0
    for line in text.splitlines():
        lines.append(line)
        code = re.sub(r'"[^"]*"', "", line).split("#")[0]
        depth += len(re.findall(r"[([{]", code)) - len(re.findall(r"[)\]}]", code))
        if depth == 0 and code.strip():
            found.append("\n".join(lines))
            lines = []
    return found


def arrows_of(package, text, targets=()):
    """What the targets of a BUILD file depend on, without tests: {package: packages}.
    The labels in `targets` stand for themselves instead of for their package."""
    found = {package: set()}
    if "default_testonly = True" in text:
        return found
    for call in statements(text):
        if (_TEST_RULE.search(call) or "testonly = True" in call or
                re.search(r"^(load|package)\(", call, re.MULTILINE)):
            continue
        name = re.search(r'name = "(\w+)"', call)
        user = f"{package}:{name[1]}" if name else ""
        user = user if user in targets else package
        call = re.sub(r"visibility = \[.*?\]", "", call, flags=re.DOTALL)
        for folder, target in re.findall(r'"(?://([\w/]*))?(:[\w.]+)?"', call):
            label = (folder or package) + target
            label = label if label in targets else label.split(":")[0]
            if ((folder or target) and label != user and
                    not label.startswith(("third_party", "conditions", "tools/"))):
                found.setdefault(user, set()).add(label)
        found.setdefault(user, set())
    return found


class Map:
    """What docs/architecture.md says of the folders, and of targets of a folder that
    lower folders use."""

    def __init__(self, page):
        section = page.split("\n## The folders\n")[1].split("\n## ")[0]
        blocks = [block.splitlines() for block in
                  re.findall(r"((?:^    \S.*\n)+)", section, re.MULTILINE)]
        # Each line is a layer; the first one is the highest.
        self.layer = {package: number for number, line in enumerate(blocks[0])
                      for package in line.split()}
        self.private = {line.split()[0]: set(line.split()[2:]) for line in blocks[1]}

    def problems(self, arrows):
        """What is wrong with `arrows`, {package: packages}."""
        found = []
        for package, others in sorted(arrows.items()):
            if package not in self.layer:
                found.append(f"{package} is not on the map")
                continue
            for other in sorted(others):
                if other not in self.layer:
                    found.append(f"{other}, which {package} uses, is not on the map")
                elif self.layer[other] <= self.layer[package]:
                    found.append(f"{package} -> {other} points upwards or sideways")
                elif other in self.private and not self._may_use(package, other):
                    found.append(f"{package} -> {other}, which is private")
        for package in sorted(set(self.layer) - set(arrows)):
            found.append(f"{package} is on the map, but is no package")
        for other, users in self.private.items():
            for user in sorted(users):
                if not any(other in others and self._is_in(package, user)
                           for package, others in arrows.items()):
                    found.append(f"{user} may use {other}, but does not")
        return found

    def _may_use(self, package, other):
        return any(self._is_in(package, user) for user in self.private[other])

    @staticmethod
    def _is_in(package, folder):
        """Whether a package, or a target of one, is `folder` or below it."""
        return re.match(re.escape(folder) + "([/:]|$)", package) is not None


def arrows(root, packages, targets=()):
    found = {}
    for package in packages:
        found.update(arrows_of(package, (root / package / "BUILD").read_text(), targets))
    return found


def packages(root):
    """The packages of the map: all that hold more than tests, apart from the tools of
    the build."""
    found = []
    for build in sorted(build for folder in folders(root)
                        for build in folder.rglob("BUILD")):
        package = str(build.parent.relative_to(root))
        text = build.read_text()
        if (not package.startswith(("third_party", "docs", "tools/",
                                    "examples/consumer")) and
                "default_testonly = True" not in text and
                not re.search(r"(^|/)(testing|system_tests)(/|$)", package)):
            found.append(package)
    return found


def public_headers(package, text):
    """The headers of the targets of a BUILD file that every project may use."""
    found = set()
    for call in statements(text):
        if '"//visibility:public"' in call and "testonly = True" not in call:
            headers = re.search(r"\bhdrs = \[(.*?)\]", call, re.DOTALL)
            default = re.search(r'name = "(\w+)"', call)[1] + ".h"
            found.update(f"{package}/{name}" for name in
                         (re.findall(r'"([\w.]+)"', headers[1]) if headers else [default])
                         if (ROOT / package / name).exists())
    return found


class SourcesTest(unittest.TestCase):

    def test_only_one_folder_asks_for_the_version_of_libtorch(self):
        self.assertGreater(len(sources(ROOT)), 500)
        found = [name for name in sources(ROOT)
                 if VERSION_CONDITION.search((ROOT / name).read_text())]
        self.assertEqual([name for name in found
                          if not name.startswith(VERSION_FOLDER)], [])
        self.assertTrue(found)  # so that the expression finds what it looks for

    def test_all_public_headers_are_on_a_page_and_compiled_with_more_warnings(self):
        text = (ROOT / "tools/public_headers.cc").read_text()
        page = (ROOT / "docs/targets.md").read_text()
        found = set().union(*(
            public_headers(package, (ROOT / package / "BUILD").read_text())
            for package in packages(ROOT) if package != "tools"))
        self.assertIn("gpipe/gpipe.h", found)
        self.assertEqual([name for name in sorted(found)
                          if f'#include "{name}"' not in text or f"`{name}`" not in page], [])

    def test_headers_directly_in_a_public_folder_are_public(self):
        for package in ("gpipe", "gpipe/distributed", "balancing", "models", "training"):
            public = public_headers(package, (ROOT / package / "BUILD").read_text())
            self.assertEqual({f"{package}/{path.name}" for path in (ROOT / package).glob("*.h")} -
                             public, set())

    def test_files_that_comments_and_pages_name_exist(self):
        files = sources(ROOT)
        pages = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
        self.assertGreater(len(pages), 10)
        found = {str(path): unknown for path in [*map(ROOT.joinpath, files), *pages]
                 if (unknown := unknown_files(path.read_text(), path.suffix == ".md", files))}
        self.assertEqual(found, {})

    def test_a_planted_name_of_a_file_is_found(self):
        files = ["gpipe/skip/layout.h"]
        text = "// See skip/layout.h, skip/old.h\nint a;  // and gone.cc\nb(\"no.cc\");"
        self.assertEqual(unknown_files(text, False, files), ["skip/old.h", "gone.cc"])
        self.assertEqual(unknown_files("`old.h`, `layout.h`, `x_test.cc`", True, files),
                         ["old.h"])

    def test_a_type_has_one_definition(self):
        files = {name: (ROOT / name).read_text() for name in sources(ROOT)
                 if not name.startswith("examples/consumer")}
        self.assertEqual(twins(files), {})
        found = {kind for text in files.values() for kind in types_of(text)}
        self.assertGreater(len(found), 300)
        self.assertIn("gpipe::Schedule", found)

    def test_a_planted_twin_is_found(self):
        files = {"a.h": "namespace gpipe {\n// struct Other {};\nstruct Step {};\n}",
                 "b.h": "namespace gpipe {\nclass Step final : public Base {\n"
                        "  struct Other {};\n};\n}",
                 "c.cc": "namespace gpipe {\nnamespace {\nstruct Step {};\n}\n}",
                 "d.h": "namespace gpipe::b {\nstruct Step {};\n}",
                 "e.h": "namespace gpipe {\nstruct Step;\nstruct Step f() { return g(); }\n}"}
        self.assertEqual(twins(files), {"gpipe::Step": ["a.h", "b.h"]})

    def test_packages_depend_on_each_other_as_the_map_says(self):
        page = (ROOT / "docs/architecture.md").read_text()
        found = arrows(ROOT, packages(ROOT), Map(page).layer)
        self.assertEqual(Map(page).problems(found), [])
        self.assertIn("gpipe/runtime/run", found["gpipe/runtime/step"])

    def test_all_files_name_the_same_version(self):
        version = re.search(r'version = "(.*)"', (ROOT / "MODULE.bazel").read_text())[1]
        numbers = re.findall(r"^#define GPIPE_VERSION_\w+ (\d+)$",
                             (ROOT / "gpipe/version.h").read_text(), re.MULTILINE)
        self.assertEqual(".".join(numbers), version)
        minor = ".".join(numbers[:2])
        for file, text in {
                "gpipe/version.h": f'#define GPIPE_VERSION "{version}"',
                "CHANGELOG.md": f"\n## {version}\n",
                "docs/quick_start.md": f'name = "gpipe", version = "{version}"',
                "docs/targets.md": f'name = "gpipe", version = "{version}"',
                "examples/consumer/MODULE.bazel": f'name = "gpipe", version = "{version}"',
                "examples/cmake_consumer/CMakeLists.txt": f"find_package(gpipe {minor} ",
                "tools/cmake/BUILD": f"-soname,libgpipe.so.{minor}\"",
        }.items():
            self.assertIn(text, (ROOT / file).read_text(), file)

    def test_globs_of_macros_may_be_empty(self):
        globs = [f"{file.relative_to(ROOT)}: {line.strip()}" for folder in folders(ROOT)
                 for file in folder.rglob("*.bzl")
                 for line in file.read_text().splitlines() if "native.glob(" in line]
        self.assertGreaterEqual(len(globs), 4)
        self.assertEqual([line for line in globs if "allow_empty = True" not in line], [])

    def test_a_planted_arrow_is_found(self):
        page = ("\n## The folders\n\n    top\n    low/room  side\n    base\n\n"
                "    low/room for top\n")
        build = 'gpipe_cc_library(\n    name = "x",\n    deps = ["//%s"],\n)\n'
        good = {"top": {"low/room", "base"}, "low/room": {"base"}, "side": {"base"},
                "base": set()}
        check = Map(page).problems
        self.assertEqual(check(good), [])
        self.assertEqual(check({**good, **arrows_of("base", build % "low/room:y")}),
                         ["base -> low/room points upwards or sideways"])
        self.assertEqual(check({**good, "low/room": {"side"}}),
                         ["low/room -> side points upwards or sideways"])
        self.assertEqual(check({**good, "top": {"base"}}),
                         ["top may use low/room, but does not"])
        self.assertEqual(check({**good, "other": set()}), ["other is not on the map"])
        private = Map(page.replace("for top", "for base"))
        self.assertIn("top -> low/room, which is private", private.problems(good))
        test = build.replace("library", "test")
        self.assertEqual(arrows_of("base", test % "low/room:y"), {"base": set()})

    def test_a_target_may_be_lower_than_its_package(self):
        page = "\n## The folders\n\n    top\n    low\n    top:x\n\n    low for top\n"
        build = 'gpipe_cc_library(\n    name = "%s",\n    deps = ["%s"],\n)\n'
        targets = Map(page).layer

        def check(top, low):
            return Map(page).problems({**arrows_of("top", top, targets),
                                       **arrows_of("low", low, targets)})
        top = build % ("x", "@libtorch//:aten") + build % ("y", "//low")
        self.assertEqual(check(top, build % ("z", "//top:x")), [])
        self.assertEqual(check(top + build % ("w", ":x"), build % ("z", "//top:x")), [])
        self.assertEqual(check(top, build % ("z", "//top:y")),
                         ["low -> top points upwards or sideways"])
        self.assertEqual(check(build % ("x", ":y") + build % ("y", "//low"), ""),
                         ["top:x -> top points upwards or sideways"])


if __name__ == "__main__":
    # The link to the header leads to the checkout.
    ROOT = pathlib.Path(VERSION_FOLDER + "node.h").resolve().parents[2]
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
