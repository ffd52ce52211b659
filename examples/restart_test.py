#!/usr/bin/env python3
"""Kills ranks of a run at random times. `launch --restarts` starts all ranks again,
and the run ends with the bits of an undisturbed run."""

import os
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time
import unittest

ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
RANKS = 4
STEPS = 12
TRAIN = [
    "examples/train",
    "--distributed",
    "--model=transformer",
    "--transformer_layers=4",
    "--transformer_width=32",
    "--length=16",
    "--batch=8",
    "--chunks=4",
    "--balance=size",
    "--devices=cpu",
    "--threads=1",
    "--eval_every=-1",
    f"--steps={STEPS}",
    "--save_every=1",
]


def children(pid):
    """Returns the running children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # it has ended
        state, parent = stat.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state not in "ZX":
            found.append(int(entry))
    return found


class Run:
    """A run with the launcher, of which `kills` ranks are killed."""

    def __init__(self, folder, kills=0, within=0.0):
        self.killed = 0
        self.lines = []
        self._starts = threading.Semaphore(1)
        begin = time.monotonic()
        self._launch = subprocess.Popen(
            ["tools/launch", f"--nproc={RANKS}", f"--restarts={kills}", "--grace=2"]
            + ["--", *TRAIN, f"--run_dir={folder}"],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        reader = threading.Thread(target=self._read)
        reader.start()
        for _ in range(kills):
            if not self._kill_one(random.uniform(0, within)):
                break
        self.code = self._launch.wait()
        reader.join()
        self.seconds = time.monotonic() - begin

    def _read(self):
        for line in self._launch.stdout:
            self.lines.append(line)
            if line.startswith("launch: starts all ranks again"):
                self._starts.release()
        self._starts.release()

    def _kill_one(self, delay):
        """Kills a rank `delay` seconds after all have started. Returns False if the
        run has ended before."""
        self._starts.acquire()
        while self._launch.poll() is None and len(children(self._launch.pid)) < RANKS:
            time.sleep(0.001)
        time.sleep(delay)
        ranks = children(self._launch.pid)
        if self._launch.poll() is not None or len(ranks) < RANKS:
            return False
        os.kill(random.choice(ranks), signal.SIGKILL)
        self.killed += 1
        return True

    def restarts(self):
        return sum(line.startswith("launch: starts all") for line in self.lines)


def bits(folder):
    """Returns the bytes of the last step's tensors."""
    step = pathlib.Path(folder, f"step-{STEPS:012}")
    files = sorted(step.glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


class RestartTest(unittest.TestCase):
    def test_random_kills_change_no_bit(self):
        kills = 20 if os.environ.get("GPIPE_THOROUGH") == "1" else 2
        random.seed(7)
        with tempfile.TemporaryDirectory() as folder:
            alone = Run(f"{folder}/alone")
            self.assertEqual(alone.code, 0, "".join(alone.lines))
            expected = bits(f"{folder}/alone")
            self.assertEqual(len(expected), 3 * RANKS)
            # Most kills come while the ranks train, some while they start.
            disturbed = Run(f"{folder}/killed", kills, within=0.9 * alone.seconds)
            text = "".join(disturbed.lines)
            self.assertEqual(disturbed.code, 0, text)
            self.assertGreater(disturbed.killed, 0)
            # A rank that is killed after its last step changes nothing.
            self.assertGreaterEqual(disturbed.restarts(), disturbed.killed - 1, text)
            self.assertEqual(bits(f"{folder}/killed"), expected)
            resumed = text.count("resumes at step")
            print(f"{disturbed.killed} kills, {resumed} resumed in between")


if __name__ == "__main__":
    unittest.main()
