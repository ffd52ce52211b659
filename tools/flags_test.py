#!/usr/bin/env python3
"""Gives programs flags that they must refuse."""

import pathlib
import struct
import subprocess
import tempfile
import unittest


class FlagsTest(unittest.TestCase):
    def error(self, program, *flags):
        """Returns the text of the error with which the program refuses its flags."""
        done = subprocess.run(
            [program if "/" in program else "tools/" + program, *flags], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 1, done)
        return done.stderr

    def test_convert_weights_refuses_flags_that_mean_nothing(self):
        model, file = ["--model=resnet50", "--list"], ["--in=a.pt", "--list"]
        for flags, why in (
            ([*model, "--in_names=torchvision"], "--in_names has no meaning without --in"),
            ([*model, "--entry=ema"], "--entry has no meaning without --in"),
            ([*model, "--depth=3"], "--depth has no meaning with --model=resnet50"),
            ([*model, "--tied_embeddings"], "--tied_embeddings has no meaning with --model=resnet50"),
            (["--model=unet", "--list", "--classes=3"], "--classes has no meaning with --model=unet"),
            ([*file, "--seed=1"], "--seed has no meaning with --in"),
            ([*file, "--layers=2"], "--layers has no meaning without --model"),
            ([*file, "--shard_size=9"], "--shard_size has no meaning without --out"),
            ([*file, "--shard_size=9", "--out=b.pt"], "--shard_size is for a folder in --out"),
            ([*file, "--shard_size=0", "--out=b/"], "convert_weights: --shard_size=0: must be at least 1"),
            (["--model=transformer", "--list", "--width=3"], "convert_weights: --width=3: must be at least 4"),
            ([*file, "--weights_dtype=float4_e2m1fn_x2"], "must be a floating-point dtype"),
        ):
            self.assertIn(why, self.error("convert_weights", *flags))

    def test_convert_weights_refuses_a_dtype_that_cannot_hold_a_value(self):
        header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        with tempfile.TemporaryDirectory() as folder:
            file, out = pathlib.Path(folder, "a.safetensors"), pathlib.Path(folder, "b.safetensors")
            file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 70000))
            error = self.error("convert_weights", f"--in={file}", f"--out={out}", "--weights_dtype=float16")
            self.assertIn("'a': 1 of 2 elements are beyond the range of Half", error)
            self.assertFalse(out.exists())

    def test_exported_refuses_flags_that_mean_nothing(self):
        for flags, why in (
            (["--tolerance=1"], "--tolerance has no meaning without --compare"),
            (["--compare=b.pt", "--partitions=2"], "--partitions has no meaning with --compare"),
            (["--chunks=2"], "--chunks has no meaning without --partitions"),
            (["--max_crossing=-1"], "--max_crossing=-1: must be at least 0"),
            (["--lora_targets=a"], "--lora_targets has no meaning without --lora_rank"),
        ):
            self.assertEqual(self.error("exported", "--in=a.pt2", *flags), f"exported: {why}\n")
        self.assertEqual(self.error("exported"), "exported: give a file to read with --in\n")

    def test_exported_names_the_file_that_cannot_be_read_once(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "a.pt2")
            file.write_text("text")
            for flags in [], ["--partitions=2"]:
                error = self.error("exported", f"--in={file}", *flags)
                self.assertTrue(error.startswith(f"exported: '{file}' is not a zip archive: "), error)
                self.assertEqual(error.count(file.name), 1)

    def test_plan_refuses_flags_that_mean_nothing(self):
        self.assertIn(
            "--model has no meaning with --profile",
            self.error("plan", "--profile=a.json", "--model=resnet50"),
        )
        self.assertIn(
            "--lora_targets has no meaning without --lora_rank",
            self.error("plan", "--model=transformer", "--lora_targets=a"),
        )
        self.assertIn(
            "--width has no meaning with --model=resnet50",
            self.error("plan", "--model=resnet50", "--width=7"),
        )
        for flags, why in (
            (["--write_profile=b.json"], "--write_profile has no meaning with --profile"),
            (["--size=9"], "--size has no meaning with --profile"),
            (["--host_bandwidth_gb=3"], "--host_bandwidth_gb has no meaning without --offload"),
            (["--shard_optimizer"], "--shard_optimizer needs a --data_parallel of 2 or more"),
            (["--json=b", "--svg=b"], "--json and --svg name the same file, b"),
            (["--json=a.json"], "--profile and --json name the same file, a.json"),
            (["--partitions=2147483647000"], "--partitions=2147483647000 must be at most 65536"),
        ):
            self.assertIn(why, self.error("plan", "--profile=a.json", *flags))

    def test_schedule_refuses_flags_that_mean_nothing(self):
        for flags, why in (
            (["--width=9"], "--width has no meaning without --svg"),
            (["--recompute_seconds=1"], "--recompute_seconds has no meaning without --recompute"),
            (["--offload_ahead=3"], "--offload_ahead has no meaning without --offload"),
            (["--svg=b", "--trace=b"], "--svg and --trace name the same file, b"),
        ):
            self.assertIn(why, self.error("schedule", *flags))

    def test_plan_names_the_flags_of_numbers_that_are_too_small(self):
        for flags, why in (
            (["--memory_gib=-1"], "--memory_gib=-1: must be at least 0"),
            (["--memory_gib=-1", "--device=cuda"], "--memory_gib=-1: must be at least 0"),
            (["--bandwidth_gb=0"], "--bandwidth_gb=0: must be above 0"),
            (["--host_bandwidth_gb=0", "--offload"], "--host_bandwidth_gb=0: must be above 0"),
        ):
            self.assertEqual(self.error("plan", *flags), f"plan: {why}\n")

    def test_schedule_names_the_flags_of_numbers_that_are_out_of_range(self):
        for flags, why in (
            (["--latency=nan"], "--latency=nan: must be a finite number of 0 or more"),
            (["--bandwidth_gb=-1"], "--bandwidth_gb=-1: must be a finite number of 0 or more"),
            (["--host_bandwidth_gb=inf"], "--host_bandwidth_gb=inf: must be a finite number of 0 or more"),
            (["--overlap=2"], "--overlap=2: must be from 0 to 1"),
            (["--svg=b", "--width=100"], "--width=100: must be at least 400"),
        ):
            self.assertEqual(self.error("schedule", *flags), f"schedule: {why}\n")

    def test_published_takes_no_flags(self):
        self.assertIn("--nosuch: there are no", self.error("benchmarks/published", "--nosuch"))

    def test_plan_names_the_flag_of_a_device_that_is_none(self):
        for name in "foo", "":
            self.assertEqual(
                self.error("plan", f"--device={name}"),
                f"plan: --device={name}: must be the type of a device: cpu, cuda, xpu, ...\n",
            )

    def test_plan_numbers_as_many_devices_as_libtorch(self):
        self.assertIn(
            "--partitions=129: LibTorch numbers at most 128 devices",
            self.error("plan", "--device=cuda", "--partitions=129"),
        )

    def test_plan_refuses_negative_sizes(self):
        for flag in "--layers=-1", "--width=-8":
            error = self.error("plan", "--model=resnet50", flag)
            self.assertIn(flag, error)
            self.assertIn("must be at least 0", error)

    def test_schedule_refuses_flags_that_a_file_replaces(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "a.csv")
            file.write_text("0F0,0B0\n")
            csv = f"--csv={file}"
            for flag in "schedule", "ranks", "stages", "stages_per_rank", "microbatches":
                self.assertEqual(
                    self.error("schedule", csv, f"--{flag}=1"),
                    f"schedule: --{flag} has no meaning with --csv: "
                    "remove one of the two\n",
                )

    def test_schedule_checks_flags_that_others_make_unused(self):
        self.assertIn(
            "--recompute_placement=foo: expected before_backward, with_backward, ahead",
            self.error("schedule", "--recompute_placement=foo"),
        )
        self.assertIn("--offload_ahead is -1", self.error("schedule", "--offload_ahead=-1"))
        self.assertIn(
            "--offload_ahead is 2147483647",
            self.error("schedule", "--offload=distant", "--offload_ahead=2147483647"),
        )
        self.assertIn(
            "--schedule has no meaning with --compare",
            self.error("schedule", "--schedule=zbv", "--compare=1f1b"),
        )

    def test_schedule_refuses_to_offload_more_than_is_kept(self):
        self.assertEqual(
            self.error("schedule", "--activation_mib=1", "--offload_mib=1,2,1,1"),
            "schedule: --offload_mib is more than --activation_mib for stage 1: "
            "only what a forward keeps can go to the host\n",
        )


if __name__ == "__main__":
    unittest.main()
