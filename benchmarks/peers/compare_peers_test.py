#!/usr/bin/env python3
"""Tests the parts of tools/compare_peers that need no peer: flags, commands, turns."""

import contextlib
import io
import os
import select
import subprocess
import sys
import tempfile
import types
import unittest

import arguments
import contest
import entries
import report

# A worker of 1000 parameters in 2 layers. Its flags: the seconds of a step, the loss,
# and the answer to "peak".
WORKER = """
import sys
seconds, loss, peak = sys.argv[1:]
print("READY 1000 2 2.0", flush=True)
for line in sys.stdin:
    print(f"{seconds} 0.5 {loss}" if line.strip() == "step" else peak, flush=True)
"""


def flags_of(*words):
    """Returns the flags, or the error in place of them."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            return arguments.read_flags("about", list(words))
        except SystemExit as end:
            assert end.code == arguments.USAGE
            return errors.getvalue()


def command_of(engine, *words, model="mlp"):
    """Returns the command and the environment of an engine."""
    flags = flags_of(f"--models={model}", f"--engines={engine}", *words)
    assert not isinstance(flags, str), flags
    flags.exported = {"llama-lora": "llama.pt2"}
    flags.plans, flags.worker = {}, "worker"
    peers = types.SimpleNamespace(python="python", environ={})
    return entries.command_of(engine, model, flags, peers)


class Flags(unittest.TestCase):
    def test_wrong_devices_are_refused_with_the_remedy(self):
        for devices, error in {
            "cuda:x": "'cuda:x' is not cpu, cuda or cuda:INDEX",
            "cuda:": "'cuda:' is not cpu, cuda or cuda:INDEX",
            "gpu": "'gpu' is not cpu, cuda or cuda:INDEX",
            "cpu,cuda:0": "all devices must be of one type",
            "cuda:0,cuda:1,cuda:0": "lists 3 devices, but mlp has 2 partitions",
        }.items():
            self.assertIn(error, flags_of("--models=mlp", f"--devices={devices}"))

    def test_a_balance_sets_the_number_of_partitions(self):
        one = flags_of("--models=mlp", "--devices=cuda:0,cuda:0", "--balance=64")
        self.assertIn("lists 2 devices, but mlp has 1 partitions", one)
        four = flags_of("--models=mlp", "--devices=" + ",".join(["cuda"] * 4), "--balance=16,16,16,16")
        self.assertEqual(four.devices, ["cuda"] * 4)

    def test_what_runs_on_the_cpu_only_is_refused_on_a_gpu(self):
        for words in (["--engines=threads-plan"], ["--models=llama"]):
            for more in ("--devices=cuda:0", "--amp=bfloat16", "--balance=4,4"):
                self.assertIn("runs on the CPU only", flags_of(*words, more))

    def test_files_and_times_are_checked(self):
        self.assertIn("--nccl=none: no file is there", flags_of("--nccl=none"))
        self.assertIn("--worker=none: no program", flags_of("--worker=none"))
        for seconds in "0", "nan":
            self.assertIn("--seconds needs to be above 0", flags_of(f"--seconds={seconds}"))
        self.assertIn("--balance=a,2 is no list", flags_of("--balance=a,2"))


class Commands(unittest.TestCase):
    def test_sizes_follow_those_of_the_model_and_so_replace_them(self):
        words, _ = command_of("torchgpipe/never", "--batch=7", "--balance=60,4")
        self.assertGreater(words.index("--batch=7"), words.index("--batch=512"))
        self.assertGreater(words.index("--balance=60,4"), words.index("--balance=32,32"))

    def test_devices_and_precision_reach_both_workers(self):
        for engine in ("1f1b/never", "torchgpipe/never", "sequential"):
            words, environ = command_of(
                engine, "--devices=cuda:0,cuda:0", "--amp=bfloat16"
            )
            self.assertIn("--devices=cuda:0,cuda:0", words)
            self.assertIn("--amp=bfloat16", words)
            self.assertNotIn("NCCL_MULTI_RANK_GPU_ENABLE", environ)

    def test_adapters_are_those_of_both_workers(self):
        for engine in ("1f1b/never", "pipelining-1f1b/never"):
            words, _ = command_of(engine, model="llama-lora")
            self.assertIn("--exported=llama.pt2", words)
            self.assertIn("--lora_rank=8", words)
            self.assertIn("--lora_targets=q_proj,v_proj", words)

    def test_processes_on_one_gpu_load_the_given_nccl(self):
        with tempfile.NamedTemporaryFile() as nccl, tempfile.NamedTemporaryFile() as malloc:
            both = [f"--nccl={nccl.name}", f"--preload={malloc.name}", "--transfers=direct"]
            for devices in ("cuda:0,cuda:0", "cuda:0"):
                more = [f"--devices={devices}", *both]
                words, theirs = command_of("pipelining-1f1b/never", *more)
                self.assertNotIn("--transfers=direct", words)
                self.assertEqual(theirs["NCCL_MULTI_RANK_GPU_ENABLE"], "1")
                self.assertEqual(theirs["NCCL_NVLS_ENABLE"], "0")
                self.assertEqual(theirs["LD_PRELOAD"], f"{nccl.name}:{malloc.name}")
                words, ours = command_of("processes-1f1b/never", *more)
                self.assertIn("--transfers=direct", words)
                self.assertEqual(ours["LD_PRELOAD"], nccl.name)
            words, apart = command_of(
                "pipelining-1f1b/never", "--devices=cuda:0,cuda:1", *both
            )
            self.assertNotIn("NCCL_MULTI_RANK_GPU_ENABLE", apart)
            self.assertNotIn("LD_PRELOAD", command_of("1f1b/never", *more)[1])


class Contest(unittest.TestCase):
    def run_workers(self, workers, **options):
        """Runs workers, each given by the arguments of WORKER; also returns what was said."""
        said = []
        results = contest.compete(
            {
                key: ([sys.executable, "-c", WORKER, *words], {})
                for key, words in workers.items()
            },
            rounds=3,
            warm_up=1,
            check=options.pop("check", lambda _: {}),
            say=said.append,
            **options,
        )
        return results, said

    def test_one_engine_at_a_time_gives_the_same_results(self):
        workers = {"a": ["2", "0.25", "5"], "b": ["1", "0.25", "7 9"]}
        for together in (True, False):
            results, said = self.run_workers(workers, together=together)
            self.assertEqual(results["a"].seconds, [2, 2, 2])
            self.assertEqual(results["b"].losses, [0.25] * 4)
            self.assertEqual((results["a"].peak_mib, results["a"].reserved_mib), (5, None))
            self.assertEqual((results["b"].peak_mib, results["b"].reserved_mib), (7, 9))
            self.assertEqual(len(said), 4 if together else 8)
        self.assertEqual([text[:2] for text in said], ["a,"] * 4 + ["b,"] * 4)

    def test_a_missing_engine_gives_its_reason_and_the_others_run(self):
        for together in (True, False):
            results = contest.compete(
                {
                    "lacking": ([sys.executable, "-c", "import no_such_peer"], {}),
                    "none": (["/no/such/program"], {}),
                    "there": ([sys.executable, "-c", WORKER, "1", "2", "3"], {}),
                },
                rounds=1,
                warm_up=1,
                check=lambda _: {},
                say=lambda _: None,
                together=together,
            )
            self.assertIn("No module named 'no_such_peer'", results["lacking"].error)
            self.assertIn("No such file", results["none"].error)
            self.assertIsNone(results["there"].error)
            self.assertEqual(results["there"].seconds, [1])

    def test_an_engine_stops_after_its_seconds(self):
        results, _ = self.run_workers({"slow": ["4", "1", "1"], "fast": ["1", "1", "1"]}, seconds=4)
        self.assertEqual(results["slow"].seconds, [4])
        self.assertEqual(results["fast"].seconds, [1, 1, 1])

    def test_a_killed_comparison_leaves_no_engine(self):
        # An engine that does not read that its input has ended.
        program = f"""
import sys
sys.path.insert(0, {os.path.dirname(contest.__file__)!r})
import contest
engine = contest.Contestant(["sleep", "1000"], {{}})
print(engine.process.pid, flush=True)
input()
"""
        comparison = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        engine = os.pidfd_open(int(comparison.stdout.readline()))
        self.addCleanup(os.close, engine)
        comparison.kill()
        comparison.communicate()
        # Can be read once the process has ended, also as a zombie.
        self.assertTrue(select.select([engine], [], [], 60)[0], "the engine still runs")

    def test_losses_are_compared_also_one_engine_at_a_time(self):
        for together in (True, False):
            results, _ = self.run_workers(
                {"gpipe/never": ["1", "0.5", "1"], "1f1b/never": ["1", "0.7", "1"]},
                check=lambda results: contest.disagreements("mlp", results),
                together=together,
            )
            for result in results.values():
                self.assertIn("first loss", result.error)


    def test_losses_are_compared_among_engines_that_split_alike(self):
        losses = {"gpipe/never": "0.5", "1f1b/never": "0.5", "ddp": "0.7", "replicas": "0.7"}
        for other, wrong in {"0.7": 0, "0.6": 2}.items():
            workers = {k: ["1", loss, "1"] for k, loss in {**losses, "ddp": other}.items()}
            results, _ = self.run_workers(workers)
            self.assertEqual(len(contest.disagreements("mlp", results)), wrong)

    def test_losses_may_differ_by_a_percent_on_gpus_and_under_autocast(self):
        def errors(other, exact):
            results, _ = self.run_workers(
                {"gpipe/never": ["1", "0.5", "1"], "1f1b/never": ["1", other, "1"]}
            )
            return contest.disagreements("mlp", results, exact)

        self.assertEqual(errors("0.504", False), {})
        self.assertEqual(len(errors("0.504", True)), 2)
        self.assertEqual(len(errors("0.51", False)), 2)


class Report(unittest.TestCase):
    def test_gpu_columns_hold_the_rates_and_both_peaks(self):
        result = contest.Result()
        result.seconds, result.cpu_seconds, result.losses = [0.25, 0.5], [1, 1], [6.5, 6]
        result.peak_mib, result.reserved_mib = 10.0, 12.0
        rows = report.rows_of(
            "mlp", {"gpipe/never": result}, {"gpipe/never": "gpipe/never"}, batch=30
        )
        text = report.to_markdown(rows, report.GPU, {})
        self.assertIn(
            "| mlp | gpipe/never | 375 | 250 | 80 | 1000 | 1.00 | 10 | 1.00 | 12 | 6.5 |", text
        )

    def test_engines_without_common_rounds_are_compared_by_their_medians(self):
        results = {}
        for engine, seconds in (("gpipe/never", [1, 2, 3]), ("sequential", [9, 3, 6, 12, 1])):
            result = results[engine] = contest.Result()
            result.seconds, result.cpu_seconds, result.losses = seconds, [1], [1]
            result.peak_mib = 1.0
        against = dict.fromkeys(results, "gpipe/never")
        for together, ratio in ((True, 2), (False, 3)):
            rows = report.rows_of("mlp", results, against, 1, together)
            self.assertEqual(rows[1]["by ours"], ratio)


class Tool(unittest.TestCase):
    def test_the_page_of_a_gpu_run_is_not_that_of_the_cpu(self):
        self.assertEqual(arguments.mark_of(flags_of("--devices=cuda:0")), "gpu")
        self.assertEqual(arguments.mark_of(flags_of()), "times")
        self.assertEqual(arguments.mark_of(flags_of("--engines=ddp")), "replicas")


if __name__ == "__main__":
    unittest.main()
