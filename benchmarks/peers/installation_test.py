#!/usr/bin/env python3
"""Packs and installs peers, with a stand-in for pip."""

import pathlib
import tempfile
import unittest
from unittest import mock

import installation


class PackTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        patch = mock.patch.object(installation, "_pip")
        self.pip = patch.start()
        self.addCleanup(patch.stop)

    def test_a_packed_folder_needs_no_installation(self):
        installation.pack(self.folder, "python3", ["torchgpipe"], mock.Mock())
        self.pip.assert_called_once()
        *_, target, pin = self.pip.call_args.args
        self.assertEqual(target, str(self.folder / "packages"))
        self.assertRegex(pin, "^torchgpipe==[0-9.]+$")
        self.pip.reset_mock()
        peers = installation.install(self.folder, "python3", mock.Mock())
        self.pip.assert_not_called()
        self.assertEqual(peers.python, "python3")
        self.assertEqual(peers.environ, {"PYTHONPATH": str(self.folder / "packages")})

    def test_another_python_needs_its_own(self):
        installation.pack(self.folder, "python3", ["torchgpipe"], mock.Mock())
        self.pip.reset_mock()
        installation.install(self.folder, "/opt/bin/python3", mock.Mock())
        self.pip.assert_called_once()


if __name__ == "__main__":
    unittest.main(verbosity=2)
