#!/usr/bin/env python3
"""Checks the flags and the errors of export_examples.py, which need no torch."""

import importlib.util
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

PROGRAM = pathlib.Path(__file__).parent / "export_examples.py"

NAMES = {
    "torch": ["lstm", "unet", "diffusion_unet"],
    "torchvision": ["resnet18", "resnet101", "mobilenet_v3_small", "vit_b_16", "swin_t",
                    "densenet121", "fcn_resnet50"],
    "transformers": ["llama", "gpt2", "bert", "t5", "mixtral", "whisper"],
}


def run(*flags):
    """Returns the exit code, the output and the errors of the program."""
    done = subprocess.run([sys.executable, str(PROGRAM), *flags], capture_output=True,
                          text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def program():
    spec = importlib.util.spec_from_file_location("export_examples", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ExportExamplesTest(unittest.TestCase):

    def test_the_list_has_each_model_with_its_package(self):
        code, out, _ = run("--list")
        self.assertEqual(code, 0)
        self.assertEqual([line.split() for line in out.splitlines()],
                         [[name, package] for package, names in NAMES.items()
                          for name in names])

    def test_an_unknown_model_is_an_error_with_the_names(self):
        code, _, err = run("--out=/nowhere", "resnet19")
        self.assertEqual(code, 2)
        self.assertIn("there is no resnet19; there are lstm, unet, diffusion_unet, resnet18,", err)

    def test_sizes_that_cannot_be_are_refused(self):
        for flags, text in ((["--out=/nowhere", "--batch=1"], "--batch=1: export treats"),
                            (["--out=/nowhere", "--heads=3"], "--heads=3 must be even"),
                            (["--out=/nowhere", "--width=6"], "divide --width=6"),
                            (["--out=/nowhere", "--kv_heads=3"], "--kv_heads=3 must divide"),
                            ([], "give a folder with --out")):
            code, _, err = run(*flags)
            self.assertEqual(code, 2)
            self.assertIn(text, err)

    def test_a_missing_package_is_an_error_with_pips_command(self):
        module = program()
        for name in ("torch", "torchvision.models", "transformers"):
            missing = ImportError(f"No module named '{name}'")
            with mock.patch.object(module.importlib, "import_module", side_effect=missing):
                with self.assertRaises(SystemExit) as caught:
                    module.load(name)
            package = name.split(".", maxsplit=1)[0]
            self.assertIn(f"cannot import {name}", str(caught.exception))
            self.assertTrue(str(caught.exception).endswith(f"-m pip install {package}"))


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
