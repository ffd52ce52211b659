#!/usr/bin/env python3
"""Runs the examples, and checks that --distributed changes no number that they print."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

# One thread per process, since results are bitwise equal only for equal numbers.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


def run(*command, **environment):
    """Runs a program and returns its stdout. Raises AssertionError if it fails."""
    done = subprocess.run(
        command,
        env=dict(ENVIRONMENT, **environment),
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def in_processes(count, *command):
    """Runs a program with --distributed, and removes the launcher's rank prefixes."""
    printed = run("tools/launch", f"--nproc={count}", "--", *command, "--distributed")
    return re.sub(r"^\[\d+\] ", "", printed, flags=re.MULTILINE)


def lines(printed, beginning):
    """Returns the lines with this beginning, without the measured times at their ends."""
    found = [line for line in printed.splitlines() if line.startswith(beginning)]
    return [re.sub(r", [\d.e-]+ s$", "", line) for line in found]


class Examples(unittest.TestCase):
    def test_the_readmes_program_learns(self):
        losses = [
            float(line.split()[-1]) for line in lines(run("examples/train_mlp"), "step")
        ]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])

    def test_replicas_learn_together(self):
        printed = run("tools/launch", "--nproc=2", "--", "examples/data_parallel")
        losses = [float(line.split()[-1]) for line in lines(printed, "[0] step")]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])

    def test_the_program_of_the_consumer_project_runs(self):
        self.assertIn("output [8, 10]", run("examples/consumer_main"))

    def test_placement_says_that_parts_compute_as_the_whole(self):
        self.assertIn(" of 64", run("examples/placement"))

    def test_a_skip_goes_from_process_to_process(self):
        alone = lines(run("examples/skip_layers"), "largest difference")
        self.assertLess(float(alone[0].split()[-1]), 1e-5)
        self.assertEqual(
            lines(in_processes(3, "examples/skip_layers"), "largest difference"), alone
        )

    def test_schedules_lose_the_same_in_processes(self):
        for name in "1f1b", "zbv":  # both placements, kLoop and kV
            alone = run("examples/schedules", name)
            self.assertEqual(len(lines(alone, "step")), 5)
            self.assertIn("simulated:", alone)
            spread = in_processes(2, "examples/schedules", name)
            self.assertEqual(lines(spread, "step"), lines(alone, "step"))
            self.assertEqual(len(lines(spread, "measured:")), 2)

    def test_an_unknown_schedule_is_an_error(self):
        with self.assertRaisesRegex(AssertionError, "ended with 1:(.|\n)*1f1b"):
            run("examples/schedules", "no-such")

    def test_the_u_net_learns_the_same_in_processes(self):
        command = (
            "examples/train_unet --size=16 --depth=2 --base_channels=4 --epochs=2 "
            "--batch=24 --chunks=5"  # the last batch of an epoch has 8 images
        ).split()
        alone = lines(run(*command), "epoch")
        self.assertEqual(len(alone), 2)
        self.assertEqual(lines(in_processes(2, *command), "epoch"), alone)

    def test_the_transformer_learns_and_writes_the_same_in_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            text.write_text(TEXT)
            command = (
                f"examples/train_transformer --data_file={text} --length=16 "
                "--width=16 --layers=2 --heads=2 --epochs=1 --steps=5"
            ).split()
            alone = run(*command)
            spread = in_processes(2, *command)
        self.assertEqual(len(lines(alone, "epoch")), 1)
        self.assertEqual(lines(spread, "epoch"), lines(alone, "epoch"))
        written = "it writes:\n"
        self.assertEqual(spread.split(written)[1], alone.split(written)[1])

    def test_distributed_is_the_same_in_processes(self):
        command = ("examples/distributed", "--steps=3")
        alone = lines(run(*command), "step")
        self.assertEqual(len(alone), 3)
        spread = run("tools/launch", "--nproc=2", "--", *command)
        self.assertEqual(
            [line.removeprefix("[0] ") for line in lines(spread, "[0] step")], alone
        )

    def test_distributed_refuses_numbers_that_no_int_holds(self):
        for flag in "--chunks=4294967297", "--stages_per_rank=4294967298":
            why = f"ended with 1:\n.*{flag}.*: must be at most 2147483647"
            with self.assertRaisesRegex(AssertionError, why):
                run("examples/distributed", flag)
        with self.assertRaisesRegex(AssertionError, "--stages_per_rank need to be above"):
            run("examples/distributed", "--stages_per_rank=0")

    def test_under_bazel_run_paths_are_those_of_where_it_was_typed(self):
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            (here / "text.txt").write_text(TEXT)
            (here / "images").mkdir()
            where = {"BUILD_WORKING_DIRECTORY": folder}
            command = (
                "examples/train --model=transformer --data_dir=text.txt --run_dir=run "
                "--balance=size --batch=2 --length=16 --steps=1"
            ).split()
            run(*command, **where)
            self.assertTrue((here / "run" / "metrics.csv").exists())
            # These programs find the data, but cannot use it.
            command = "examples/train_transformer --data_file=text.txt --length=2000"
            with self.assertRaisesRegex(AssertionError, "has [0-9]+ tokens"):
                run(*command.split(), **where)
            with self.assertRaisesRegex(AssertionError, "holds no folder masks/"):
                run("examples/train_unet", "--data_dir=.", **where)
            (here / "flags").write_text("--svg=a.svg")
            run("tools/schedule", "--flagfile=flags", **where)
            self.assertTrue((here / "a.svg").exists())

    def test_gflags_own_help_is_no_reason_to_train(self):
        for name in "train", "train_unet", "train_transformer", "distributed":
            self.assertEqual(run(f"examples/{name}", "--version").split()[0], name)

    def test_a_process_more_than_partitions_can_be_is_an_error(self):
        with self.assertRaisesRegex(AssertionError, "ended with 1:(.|\n)*balance"):
            in_processes(2, "examples/skip_layers")


if __name__ == "__main__":
    unittest.main()
