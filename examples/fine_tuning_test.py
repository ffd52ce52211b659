#!/usr/bin/env python3
"""Runs the commands of docs/fine_tuning.md with a small model.

The Python programs of the page need transformers, so they do not run here. What the first
of them writes is in models/exported/testdata (make.py there). A tokenizer of ASCII stands
for that of transformers.
"""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

PAGE = pathlib.Path("docs/fine_tuning.md")
TESTDATA = pathlib.Path("models/exported/testdata")
TRANSFORMERS = '''
import types


class Ascii:
    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    def __call__(self, text, add_special_tokens):
        ids = [self.bos_token_id] * add_special_tokens + list(text.encode("ascii"))
        return types.SimpleNamespace(input_ids=ids)

    def decode(self, ids):
        return bytes(ids).decode("ascii", "replace").replace("\\n", "?")


class AutoTokenizer:
    from_pretrained = staticmethod(lambda folder: Ascii())
'''
PAIRS = [{"prompt": f"What is {k}?", "answer": f" A number, {k}."} for k in range(40)]


def commands(heading):
    """Returns the shell blocks of a section."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [text for language, text in blocks if not language]


class FineTuningTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for each in ("models", "data", "tmp", "python"):
            (self.folder / each).mkdir()
        (self.folder / "python/transformers.py").write_text(TRANSFORMERS, encoding="utf-8")
        (self.folder / "data/pairs.jsonl").write_text(
            "".join(json.dumps(each) + "\n" for each in PAIRS), encoding="utf-8")
        shutil.copy(TESTDATA / "llama.pt2", self.folder / "models")
        shutil.copytree(TESTDATA / "llama", self.folder / "models/llama")

    def run_block(self, block):
        """Runs a block with the folders of this test, few steps and short rows."""
        block = re.sub(r"\./bazelw run //(\w+):(\w+) -- ", r"\1/\2 ", block)
        block = re.sub(r"/(models|data|runs|tmp)/", rf"{self.folder}/\1/", block)
        block = re.sub(r"--(steps|length)=\d+", lambda m: {
            "steps": "--steps=3 --batch=2 --chunks=2", "length": "--length=64"}[m.group(1)], block)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block], capture_output=True, text=True,
            check=False, timeout=240,
            env=dict(os.environ, PYTHONPATH=str(self.folder / "python"), OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, 0, block + done.stdout + done.stderr)
        return done.stdout

    def test_the_commands_of_the_page_write_an_adapter_and_a_text(self):
        blocks = commands("How do I train an adapter?")
        self.assertEqual(len(blocks), 1)
        printed = self.run_block(blocks[0])
        self.assertIn("40 examples", printed)
        self.assertRegex(printed.splitlines()[-1], r"^1 2 3( \d+){64}$")

        config = json.loads((self.folder / "runs/llama/adapter/adapter_config.json").read_text())
        self.assertEqual(config["peft_type"], "LORA")
        self.assertEqual(config["r"], 8)
        self.assertEqual(sorted(config["target_modules"]), ["q_proj", "v_proj"])
        with open(self.folder / "runs/llama/adapter/adapter_model.safetensors", "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        self.assertEqual(
            {name: each["shape"] for name, each in header.items()},
            {f"base_model.model.model.layers.0.self_attn.{module}.{part}.weight": shape
             for module, size in (("q_proj", 16), ("v_proj", 8))
             for part, shape in (("lora_A", [8, 16]), ("lora_B", [size, 8]))})

        blocks = commands("How do I generate text?")
        self.assertEqual(len(blocks), 1)
        self.assertIn("What is a stage?", self.run_block(blocks[0]))


if __name__ == "__main__":
    unittest.main()
