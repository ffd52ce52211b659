#!/usr/bin/env python3
"""Kills ranks of a run, in the thorough form at random times. `launch --restarts` starts
all ranks again, and the run ends with the bits of an undisturbed run."""

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
THOROUGH = os.environ.get("GPIPE_THOROUGH") == "1"
STEPS = 100 if THOROUGH else 16
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
    "--save_every=2",
]


def ranks_of(pid):
    """Returns the running ranks of a launcher. Its supervisor leads another session."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # it has ended
        state, parent, _, session = stat.rpartition(")")[2].split()[:4]
        if int(parent) == pid and state not in "ZX" and session != entry:
            found.append(int(entry))
    return found


def last_step(folder):
    """Returns the number of the last saved step, or 0."""
    steps = pathlib.Path(folder).glob("step-*")
    return max((int(step.name.partition("-")[2]) for step in steps), default=0)


class Run:
    """A run with the launcher, of which `kills` ranks are killed."""

    def __init__(self, folder, kills=0):
        self.killed = 0
        self.lines = []
        self._folder = folder
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
        while self.killed < kills and self._is_running():
            if THOROUGH:
                # One kill in three comes while the ranks start, the others come during
                # or after one of the next steps.
                steps = random.choice([0, 2, 4])
                self._kill_one(last_step(folder) + steps, random.uniform(0, 0.1))
            else:
                # Steps that are saved long before the end, also on a fast machine.
                self._kill_one(2 * (self.killed + 1), delay=0)
        self.code = self._launch.wait()
        reader.join()
        self._launch.stdout.close()

    def _read(self):
        for line in self._launch.stdout:
            self.lines.append(line)

    def _is_running(self):
        return self._launch.poll() is None

    def _kill_one(self, step, delay):
        """Kills a rank `delay` seconds after `step` was saved and all ranks run."""
        while self._is_running() and (
            self.restarts() < self.killed
            or len(ranks_of(self._launch.pid)) < RANKS
            or last_step(self._folder) < step
        ):
            time.sleep(0.001)
        time.sleep(delay)
        ranks = ranks_of(self._launch.pid)
        if len(ranks) == RANKS:
            try:
                os.kill(random.choice(ranks), signal.SIGKILL)
            except ProcessLookupError:
                return  # it has ended meanwhile
            self.killed += 1

    def restarts(self):
        return sum(line.startswith("launch: starts all") for line in self.lines)


def bits(folder):
    """Returns the bytes of the last step's tensors."""
    step = pathlib.Path(folder, f"step-{STEPS:012}")
    files = sorted(step.glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


class RestartTest(unittest.TestCase):
    def test_random_kills_change_no_bit(self):
        kills = 20 if THOROUGH else 2
        random.seed(7)
        with tempfile.TemporaryDirectory() as folder:
            alone = Run(f"{folder}/alone")
            self.assertEqual(alone.code, 0, "".join(alone.lines))
            expected = bits(f"{folder}/alone")
            self.assertEqual(len(expected), 3 * RANKS)
            disturbed = Run(f"{folder}/killed", kills)
            text = "".join(disturbed.lines)
            self.assertEqual(disturbed.code, 0, text)
            self.assertEqual(disturbed.killed, kills, text)
            self.assertEqual(disturbed.restarts(), kills, text)
            self.assertIn("resumes at step", text)
            self.assertEqual(bits(f"{folder}/killed"), expected)
            resumed = text.count("resumes at step")
            print(f"{kills} kills, {resumed} of the restarts resumed from a saved step")


if __name__ == "__main__":
    unittest.main()
