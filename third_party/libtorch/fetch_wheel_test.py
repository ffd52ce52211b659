#!/usr/bin/env python3
"""Tests of fetch_wheel.py with a stand-in for pip."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("fetch_wheel.py")

# Writes a wheel with two files, then waits for the file WAIT.
PIP = """
import os, sys, time, zipfile
wheel = sys.argv[sys.argv.index("--dest") + 1] + "/a-1-py3.whl"
with zipfile.ZipFile(wheel, "w") as archive:
    archive.writestr("a/lib/x", "x")
    archive.writestr("a/other", "y")
if "WAIT" in os.environ:
    print("waits", file=sys.stderr, flush=True)
    while not os.path.exists(os.environ["WAIT"]):
        time.sleep(0.01)
"""


class FetchWheelTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.cache = pathlib.Path(scratch.name, "cache")
        self.go = pathlib.Path(scratch.name, "go")
        modules = pathlib.Path(scratch.name, "modules")
        (modules / "pip").mkdir(parents=True)
        (modules / "pip/__main__.py").write_text(PIP)
        (modules / "pip/__init__.py").touch()
        self.environment = {**os.environ, "PYTHONPATH": str(modules)}

    def start(self, **environment):
        return subprocess.Popen(
            [sys.executable, "-B", SCRIPT, "a==1", "x86_64", "unknown", self.cache / "a-1",
             "a/lib/"],
            env={**self.environment, **environment}, stderr=subprocess.PIPE, text=True)

    def names(self):
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*"))

    def test_members_are_unpacked(self):
        process = self.start()
        self.assertEqual(process.communicate()[1],
                         "a-1-py3.whl: no known checksum for this machine's architecture\n")
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.names(), ["a-1", "a-1/a", "a-1/a/lib", "a-1/a/lib/x", "lock"])

    def test_a_folder_that_is_there_needs_no_lock(self):
        (self.cache / "a-1").mkdir(parents=True)
        process = self.start()
        self.assertEqual((process.communicate()[1], process.returncode), ("", 0))
        self.assertEqual(self.names(), ["a-1"])

    def wait(self, on_hangup):
        """Starts a download that waits for the file `go`."""
        before = signal.signal(signal.SIGHUP, on_hangup)  # which the process inherits
        process = self.start(WAIT=str(self.go))
        signal.signal(signal.SIGHUP, before)
        self.assertEqual(process.stderr.readline(), "waits\n")
        return process

    def test_a_stopped_download_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = self.wait(signal.SIG_DFL)
            process.send_signal(number)
            process.communicate()
            self.assertEqual(process.returncode, 128 + number)
            self.assertEqual(self.names(), ["lock"])

    def test_nohup_keeps_a_download(self):
        process = self.wait(signal.SIG_IGN)
        process.send_signal(signal.SIGHUP)
        self.go.touch()
        process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertIn("a-1/a/lib/x", self.names())


if __name__ == "__main__":
    unittest.main()
