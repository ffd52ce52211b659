"""Tests of check_pages.py, code_blocks.py and pages.py."""

import pathlib
import tempfile
import unittest

import check_pages
import code_blocks
import pages


def fenced(language, text, before=""):
    return f"{before}```{language}\n{text}```\n"


class CodeBlocksTest(unittest.TestCase):
    def cpp(self, text):
        return code_blocks.generate({"docs/a.md": text})

    def test_makes_a_function_of_each_block_at_its_place_in_the_page(self):
        cpp = self.cpp("Text\n" + fenced("cpp", "f();\n") + fenced("cpp", "g();\n"))
        self.assertIn('inline void line_3() {\n#line 3 "docs/a.md"\nf();\n\n}', cpp)
        self.assertIn('inline void line_6() {\n#line 6 "docs/a.md"\ng();\n\n}', cpp)
        self.assertIn("EXPECT_GT(2, 0)", cpp)

    def test_leaves_other_languages_alone(self):
        self.assertNotIn("echo", self.cpp(fenced("bash", "echo\n") + fenced("", "echo\n")))

    def test_a_tree_without_cpp_fails(self):
        self.assertIn("EXPECT_GT(0, 0)", self.cpp("Text\n"))

    def test_includes_go_to_the_top_and_lines_keep_their_numbers(self):
        cpp = self.cpp(fenced("cpp", '#include "b.h"\nf();\n'))
        self.assertLess(cpp.index('#include "b.h"'), cpp.index("namespace docs::"))
        self.assertIn('#line 2 "docs/a.md"\n\nf();\n', cpp)

    def test_hidden_cpp_is_outside_of_functions(self):
        cpp = self.cpp("<!-- cpp\nint k;\n-->\n" + fenced("cpp", "f();\n"))
        self.assertLess(cpp.index("int k;"), cpp.index("inline void"))

    def test_global_and_continued_and_run(self):
        cpp = self.cpp(
            fenced("cpp", "struct A {};\n", "<!-- cpp: global -->\n")
            + fenced("cpp", "A a;\n", "<!-- cpp: run -->\n")
            + fenced("cpp", "use(a);\n", "<!-- cpp: continued -->\n"))
        self.assertEqual(cpp.count("inline void"), 1)
        self.assertLess(cpp.index("struct A"), cpp.index("inline void"))
        self.assertLess(cpp.index("use(a);"), cpp.index("TEST(docs_a, line_7_runs)"))

    def test_then_ends_the_block_before_it(self):
        cpp = self.cpp(fenced("cpp", "f();\n", "<!-- cpp: run -->\n")
                       + "<!-- cpp: then\nEXPECT_TRUE(g());\n-->\n")
        self.assertLess(cpp.index("f();"), cpp.index("EXPECT_TRUE(g());"))
        self.assertLess(cpp.index("EXPECT_TRUE(g());"), cpp.index("TEST(docs_a"))
        with self.assertRaises(pages.PageError):
            self.cpp("<!-- cpp: then\nEXPECT_TRUE(g());\n-->\n")

    def test_a_whole_program_is_a_test_of_its_exit_code(self):
        cpp = self.cpp(fenced("cpp", "int main() {\n  f();\n}\n", "<!-- cpp: run -->\n"))
        self.assertIn("int example() {\n  f();\n return 0; }", cpp)
        self.assertIn("EXPECT_EQ(line_3::example(), 0);", cpp)

    def test_refuses_what_it_does_not_know(self):
        for text in ["<!-- cpp: rnu -->\n" + fenced("cpp", "f();\n"),
                     "<!-- cpp: run -->\n",
                     fenced("cpp", "f();\n", "<!-- cpp: continued -->\n"),
                     "```cpp\nf();\n", "<!-- cpp\nint k;\n"]:
            with self.assertRaises(pages.PageError, msg=text):
                self.cpp(text)


class CheckPagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for path, text in {
                "a/BUILD": 'gpipe_cc_binary(\n    name = "b",\n)\n',
                "a/b.cc": 'DEFINE_int64(steps, 1, "how many");\n',
                "a/options.inc": 'OPTION(int64_t, size, 0, kRun, "pixels")\n',
                "a/c_test.cc": "TEST_F(OneTest,\n       Works) {}\n",
                "docs/page.md": "# One heading, `two`\n",
                "tools/tool.sh": "# --fix\n",
                ".bazelrc": "build:asan --copt=-g\n"}.items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        self.tree = check_pages.Tree(root)

    def problems(self, text):
        return list(check_pages.check("docs/page.md", text, self.tree))

    def test_accepts_what_exists(self):
        for text in ["`//a:b`", "`//a/...`", "`@gpipe//a:b_cpu`", "`//...`", "`OneTest.Works`", "http://a/c",
                     fenced("", "./bazelw run //a:b -- --steps=3 \\\n    --help\n"),
                     "    bazel-bin/examples/b --size=3\n",
                     fenced("", "./bazelw test --config=asan //a:all\n"),
                     "    tools/tool.sh --fix --jobs=2\n",
                     "[text](page.md#one-heading-two) [text](../a/BUILD) [text](https://x.y)"]:
            self.assertEqual(self.problems(text), [], text)

    def test_finds_what_does_not(self):
        for text, word in [
                ("`//a:c`", "//a:c"),
                ("`//c/...`", "//c/..."),
                ("`//c`", "//c"),
                ("`OneTest.Fails`", "OneTest.Fails"),
                (fenced("", "./bazelw run //a:b -- --steps=3 \\\n    --stops=4\n"), "--stops"),
                ("    bazel-bin/examples/b --stops\n", "--stops"),
                (fenced("", "./bazelw test --config=osan //a:b\n"), "osan"),
                ("    tools/tool.sh --fux\n", "--fux"),
                ("[text](nowhere.md)", "nowhere.md"),
                ("[a](page.md#three)", "#three"),
                ("[a\nb](#three)", "#three")]:
            found = self.problems(text)
            self.assertEqual(len(found), 1, text)
            self.assertIn(word, found[0][1])

    def test_finds_cpp_that_is_not_compiled(self):
        for text in [fenced("", "f();\n"), fenced("text", "f();  // why\n"),
                     fenced("c++", "f();\n"), "Text:\n\n    f();\n"]:
            self.assertEqual(len(self.problems(text)), 1, text)


if __name__ == "__main__":
    unittest.main()
