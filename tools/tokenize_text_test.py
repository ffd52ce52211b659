#!/usr/bin/env python3
"""Checks the rows of tokenize_text.py, which need no transformers, and its errors."""

import contextlib
import io
import json
import os
import pathlib
import struct
import tempfile
import types
import unittest
import zipfile
from unittest import mock

import tokenize_text as program

NONE = -100


IDS = program.Input("input_ids", 5, [None, None])
PLACES = program.Input("position_ids", 5, [None, None])
MASK = program.Input("attention_mask", 5, [None, None])
BLOCKS = program.Input("attention_mask", 12, [None, 1, None, None])


class Letters:
    """A tokenizer: a letter is its place in the alphabet, a text begins with 0."""

    eos_token_id, pad_token_id = 27, 30

    def __call__(self, text, add_special_tokens):
        ids = [ord(each) - 96 for each in text if each.isalpha()]
        return types.SimpleNamespace(input_ids=[0] * add_special_tokens + ids)

    def decode(self, ids):
        return "".join(chr(each + 96) for each in ids)


def read(path):
    """Returns the tensors of a .safetensors file as lists, with dtypes and sizes."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    codes = {"I64": "q", "BOOL": "b", "F32": "f"}
    found = {}
    for name, each in header.items():
        begin, end = each["data_offsets"]
        values = memoryview(data[begin:end]).cast(codes[each["dtype"]]).tolist()
        found[name] = (each["dtype"], each["shape"], values)
    return found


def write_program(path, inputs):
    values = {each.name: {"dtype": each.dtype, "sizes": [
        {"as_expr": {"expr_str": "s0"}} if size is None else {"as_int": size}
        for size in each.sizes]} for each in inputs}
    specs = [{"parameter": {"arg": {"name": "p"}}}] + [
        {"user_input": {"arg": {"as_tensor": {"name": each.name}}}} for each in inputs]
    module = {"graph_module": {"graph": {"tensor_values": values},
                               "signature": {"input_specs": specs}}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/models/model.json", json.dumps(module))


class TokenizeTextTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *flags, stdin=""):
        """Returns the exit code, the output and the errors, with the tokenizer Letters."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(program, "load_tokenizer", lambda folder: Letters()), \
                mock.patch("sys.stdin", io.StringIO(stdin)), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.main(["--tokenizer=letters", *flags])
        return code, out.getvalue(), err.getvalue()

    def write(self, name, *lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("".join(each + "\n" for each in lines))
        return "--in=" + self.path(name)

    def rows(self, *flags):
        code, out, err = self.run_program("--out=" + self.path("rows"), *flags)
        self.assertEqual((code, err), (0, ""))
        return read(self.path("rows")), out

    def test_a_text_is_cut_into_rows_whose_targets_are_the_next_tokens(self):
        rows, out = self.rows(self.write("text.txt", "abcdef"), "--length=4")
        self.assertEqual(rows, {
            "input_ids": ("I64", [2, 4], [0, 1, 2, 3, 4, 5, 30, 30]),
            "target": ("I64", [2, 4], [1, 2, 3, 4, 5, 6, NONE, NONE])})
        self.assertIn("2 rows of 4 tokens", out)
        self.assertIn("6 tokens, 6 targets, 25.0 % padding; 0 examples were cut", out)

    def test_only_answers_are_targets(self):
        line = json.dumps({"prompt": "ab", "answer": "cd"})
        rows, _ = self.rows(self.write("pairs.jsonl", line), "--length=6")
        self.assertEqual(rows["input_ids"][2], [0, 1, 2, 3, 4, 30])
        self.assertEqual(rows["target"][2], [NONE, NONE, 3, 4, 27, NONE])

    def test_a_line_with_a_text_is_a_target_as_a_whole(self):
        rows, _ = self.rows(self.write("texts.jsonl", json.dumps({"text": "ab"}), ""),
                            "--length=3")
        self.assertEqual(rows["target"][2], [1, 2, 27])

    def test_long_lines_are_cut_and_those_without_a_target_left_out(self):
        rows, out = self.rows(self.write(
            "pairs.jsonl", json.dumps({"prompt": "abc", "answer": "de"}),
            json.dumps({"prompt": "abcdef", "answer": "g"})), "--length=4")
        self.assertEqual(rows["input_ids"][1:], ([1, 4], [0, 1, 2, 3]))
        self.assertEqual(rows["target"][2], [NONE, NONE, NONE, 4])
        self.assertIn("2 examples were cut, 1 without a target left out", out)

    def test_packed_lines_have_places_of_their_own(self):
        lines = [json.dumps({"prompt": p, "answer": a})
                 for p, a in (("", "a"), ("bc", "d"), ("e", "f"))]
        write_program(self.path("model.pt2"), [IDS, PLACES])
        rows, _ = self.rows(self.write("pairs.jsonl", *lines), "--length=6", "--pack",
                            "--model=" + self.path("model.pt2"))
        # The first line has 2 tokens without its end, the second 4, and the third 3.
        self.assertEqual(rows["input_ids"][2], [0, 1, 0, 2, 3, 4, 0, 5, 6, 30, 30, 30])
        self.assertEqual(rows["position_ids"][2], [0, 1, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2])
        self.assertEqual(rows["target"][2],
                         [1, 27, NONE, NONE, 4, 27, NONE, 6, 27, NONE, NONE, NONE])

    def test_a_mask_of_four_dimensions_separates_lines_and_padding(self):
        for dtype, seen, unseen in ((12, 1, 0), (7, 0.0, float("-inf"))):
            mask = program.Input("attention_mask", dtype, [None, 1, None, None])
            write_program(self.path("model.pt2"), [IDS, mask])
            rows, _ = self.rows(
                self.write("texts.jsonl", json.dumps({"text": "a"}), json.dumps({"text": ""})),
                "--length=4", "--pack", "--model=" + self.path("model.pt2"))
            name, sizes, values = rows["attention_mask"]
            self.assertEqual((name, sizes), ({12: "BOOL", 7: "F32"}[dtype], [1, 1, 4, 4]))
            self.assertEqual([each == seen for each in values],
                             [True, False, False, False, True, True, False, False,
                              False, False, True, False, False, False, False, True])
            self.assertEqual(set(values), {seen, unseen})

    def test_a_chat_template_is_for_prompts_and_for_the_end_of_answers(self):
        class Chat(Letters):
            def apply_chat_template(self, messages, tokenize=True, **_):
                if tokenize:
                    return {"input_ids": [25, *self(messages[0]["content"], False).input_ids, 26]}
                return "y".join(each["content"] for each in messages) + self.tail

            def get_added_vocab(self):
                return {"y": 25, "z": 26, "x": 24}

        tokenizer = Chat()
        encode = program.encoder(tokenizer, chat=True)
        for tail, end in ("nxnz", 24), ("n", 27), ("", 27), ("x7391z", 24):
            tokenizer.tail = tail
            self.assertEqual(program.find_end_of_answer(tokenizer, True), end)
        self.assertEqual(program.find_end_of_answer(tokenizer, False), 27)
        self.assertEqual(program.example_of_line({"prompt": "ab", "answer": "c"}, encode, 27,
                                                 lambda: 24),
                         ([25, 1, 2, 26, 3, 24], [False] * 4 + [True] * 2))
        self.assertEqual(program.example_of_line({"text": "ab"}, encode, 27, None),
                         ([0, 1, 2, 27], [True] * 4))

    def test_packing_puts_long_lines_first_and_fills_rows(self):
        examples = [([k] * (size + 1), [True] * (size + 1))
                    for k, size in enumerate([2, 3, 5, 1, 4])]
        rows = program.pack(examples, 5)
        self.assertEqual([[each[0][0] for each in row] for row in rows], [[0, 1], [2], [3, 4]])
        self.assertEqual(sum(len(row) for row in program.pack(examples * 100, 5)), 500)

    def test_the_length_of_a_program_is_used(self):
        write_program(self.path("model.pt2"), [program.Input("tokens", 5, [None, 3])])
        rows, _ = self.rows(self.write("text.txt", "ab"), "--model=" + self.path("model.pt2"))
        self.assertEqual(rows["tokens"][1:], ([1, 3], [0, 1, 30]))

    def test_lines_become_tokens_and_tokens_lines(self):
        self.assertEqual(self.run_program("--encode", stdin="ab\nc\n"), (0, "0 1 2\n0 3\n", ""))
        self.assertEqual(self.run_program("--decode", stdin="1 2\n3\n"), (0, "ab\nc\n", ""))

    def test_errors_say_what_to_do_and_write_nothing(self):
        text = self.write("text.txt", "ab")
        out = "--out=" + self.path("out")
        model = "--model=" + self.path("model.pt2")
        write_program(self.path("model.pt2"), [program.Input("tokens", 5, [None, 3])])
        write_program(self.path("other.pt2"), [IDS, program.Input("pixels", 7, [None, 4])])
        write_program(self.path("none.pt2"), [PLACES])
        self.write("text.pt2", "no archive")
        write_program(self.path("masked.pt2"), [IDS, PLACES, MASK])
        for flags, part in (
                ([text, out], "--length=0: must be at least 1"),
                ([text, out, model, "--length=4"], "exported for 3 tokens; use --length=3"),
                ([text, out, model, "--pack"], "export a program that takes position_ids"),
                ([text, out, "--model=" + self.path("masked.pt2"), "--length=4", "--pack"],
                 "position_ids and no attention_mask"),
                ([text, out, "--model=" + self.path("other.pt2")], "no value for pixels"),
                ([text, out, "--model=" + self.path("none.pt2")], "but no tokens"),
                ([text, out, "--model=" + self.path("text.pt2")], "File is not a zip file"),
                ([self.write("empty.txt"), out, "--length=4"], "no token that is a target"),
                ([self.write("a.jsonl", '{"prompt": "a"}'), out, "--length=4"],
                 "line 1: has prompt, but needs text, or prompt and answer"),
                ([self.write("b.jsonl", "{}", "{"), out, "--length=4"], "line 1: has nothing"),
                ([self.write("c.jsonl", "[5]"), out, "--length=4"], "line 1: is [5], but must be"),
                ([self.write("d.jsonl", '{"prompt": "a", "answer": null}'), out, "--length=4"],
                 "line 1: has the answer null, which is no text"),
                (["--in=" + self.path("missing"), out, "--length=4"], "No such file")):
            code, _, err = self.run_program(*flags)
            self.assertEqual(code, 1)
            self.assertIn(part, err)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_missing_folder_or_package_is_an_error(self):
        with mock.patch.dict("sys.modules", {"transformers": None}):
            with self.assertRaisesRegex(ValueError, "pip install transformers"):
                program.load_tokenizer("/nowhere")
        fake = types.SimpleNamespace(AutoTokenizer=None)
        with mock.patch.dict("sys.modules", {"transformers": fake}):
            with self.assertRaisesRegex(ValueError, "--tokenizer=/nowhere is no folder"):
                program.load_tokenizer("/nowhere")


if __name__ == "__main__":
    unittest.main()
