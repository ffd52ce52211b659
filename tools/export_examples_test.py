#!/usr/bin/env python3
"""Checks the flags and the errors of export_examples.py, which need no torch."""

import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import export_examples

PROGRAM = export_examples.__file__

def run(*flags):
    """Returns the exit code, the output and the errors of the program."""
    done = subprocess.run([sys.executable, PROGRAM, *flags], capture_output=True,
                          text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class ExportExamplesTest(unittest.TestCase):

    def test_the_list_has_each_model_with_its_package(self):
        code, out, _ = run("--list")
        self.assertEqual(code, 0)
        lines = [line.split() for line in out.splitlines()]
        packages = dict(lines)
        self.assertEqual(len(packages), len(lines))  # names differ
        self.assertEqual(list(dict.fromkeys(packages.values())),
                         ["torch", "torchvision", "timm", "transformers"])
        for name, package in (("unet", "torch"), ("fcn_resnet50", "torchvision"),
                              ("convnext_atto", "timm"), ("xlnet", "transformers")):
            self.assertEqual(packages[name], package)

    def test_an_unknown_model_is_an_error_with_the_names(self):
        code, _, err = run("--out=/nowhere", "resnet19")
        self.assertEqual(code, 2)
        self.assertIn("there is no resnet19; there are lstm, unet, diffusion_unet, resnet18,", err)

    def test_models_with_the_same_file_are_refused(self):
        code, _, err = run("--out=/nowhere", "a.py:make", "b.py:make")
        self.assertEqual(code, 2)
        self.assertIn("the same file: a.py:make, b.py:make", err)

    def test_sizes_that_cannot_be_are_refused(self):
        for flags, text in ((["--out=/nowhere", "--batch=1"], "--batch=1: export treats"),
                            (["--out=/nowhere", "--heads=0"], "--heads=0: must be at least 1"),
                            (["--out=/nowhere", "--kv_heads=-2"], "--kv_heads=-2: must be at"),
                            (["--out=/nowhere", "--vocabulary=3"], "must be at least 4"),
                            (["--out=/nowhere", "--image=48"], "--image=48: must be a multiple"),
                            (["--out=/nowhere", "--heads=3"], "--heads=3 must be even"),
                            (["--out=/nowhere", "--width=6"], "divide --width=6"),
                            (["--out=/nowhere", "--kv_heads=3"], "--kv_heads=3 must divide"),
                            (["--out=/nowhere", "--check", "--meta"], "--check needs weights"),
                            ([], "give a folder with --out")):
            code, _, err = run(*flags)
            self.assertEqual(code, 2)
            self.assertIn(text, err)

    def test_a_missing_package_is_an_error_with_pips_command(self):
        for name in ("torch", "torchvision.models", "timm", "transformers"):
            missing = ImportError(f"No module named '{name}'")
            with mock.patch.object(export_examples.importlib, "import_module", side_effect=missing):
                with self.assertRaises(SystemExit) as caught:
                    export_examples.load(name)
            package = name.split(".", maxsplit=1)[0]
            self.assertIn(f"cannot import {name}", str(caught.exception))
            self.assertTrue(str(caught.exception).endswith(f"-m pip install {package}"))

    def test_each_tensor_that_differs_is_named_with_a_reason(self):
        model = {"output.0": 1, "weight.0": 5, "grad.a": 2, "grad.b": 3, "buffer.calls": 4}
        exported = {"output.0": 1, "weight.0": 6, "grad.a": 2.5, "grad.c": 3, "buffer.calls": 4,
                    "buffer.lifted_tensor_0": 7}
        with mock.patch.object(export_examples, "distance", lambda a, b: abs(a - b)):
            self.assertEqual(export_examples.differences(model, model), [])
            self.assertEqual(
                [line.split(";")[0] for line in export_examples.differences(exported, model)],
                ["gradient of a differs by 5.0e-01 of the largest element",
                 "gradient of b is missing in the program",
                 "gradient of c is missing in the model"])
            line, = export_examples.differences({"buffer.calls": 3}, {"buffer.calls": 4}, "eval buffer")
        self.assertEqual(line, "buffer calls differs by 1.0e+00 of the largest element; "
                         "the model changes it in eval mode, and gpipe's eval() does not")

    def test_an_argument_of_a_node_is_set_where_it_was_given(self):
        node = mock.Mock(kwargs={"train": True})
        names = ["input", "p", "train"]
        export_examples.set_argument(node, names, "train", False)
        node.update_kwarg.assert_called_once_with("train", False)
        export_examples.set_argument(node, names, "p", 0.0)
        node.update_arg.assert_called_once_with(1, 0.0)

    def test_a_model_of_a_file_is_made_by_its_function(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "mine.py"
            path.write_text("def build():\n    return 'model', ('input',)\n")
            make = export_examples.own_model(f"{path}:build")
        self.assertEqual(make.__name__, "build")
        self.assertEqual(make(), ("model", ("input",)))


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
