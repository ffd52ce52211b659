#!/usr/bin/env python3
"""Checks rules for the C++ sources of this tree that no compiler checks."""

import pathlib
import re
import sys
import unittest

FOLDER = "gpipe/libtorch/"

# A preprocessor condition on LibTorch's version.
VERSION_CONDITION = re.compile(r"^\s*#\s*(el)?if.*\bTORCH_VERSION", re.MULTILINE)


def sources(root):
    """Returns the C++ files of this tree, relative to `root`, without Bazel's outputs."""
    folders = [folder for folder in root.iterdir() if folder.is_dir() and
               not folder.name.startswith((".", "bazel-"))]
    return sorted(str(file.relative_to(root)) for folder in folders
                  for file in folder.rglob("*.*") if file.suffix in (".cc", ".h"))


class SourcesTest(unittest.TestCase):

    def test_only_one_folder_asks_for_the_version_of_libtorch(self):
        self.assertGreater(len(sources(ROOT)), 500)
        found = [name for name in sources(ROOT)
                 if VERSION_CONDITION.search((ROOT / name).read_text())]
        self.assertEqual([name for name in found if not name.startswith(FOLDER)], [])
        self.assertTrue(found)  # checks that the expression can match


if __name__ == "__main__":
    # Bazel's link to the header leads to the checkout.
    ROOT = pathlib.Path(FOLDER + "node.h").resolve().parents[2]
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
