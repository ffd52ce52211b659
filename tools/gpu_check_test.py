#!/usr/bin/env python3
"""Runs gpu_check.sh with stand-ins for the packed programs, nvidia-smi and nsys."""

import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "gpu_check.sh"

# The stand-in of `run`. It answers as the probe does on a machine with $GPUS GPUs. The
# variable $BROKEN names a check that fails, and $STUCK one that never ends, not even
# after SIGTERM.
RUN = r"""#!/usr/bin/env bash
echo "$*" >>"$CALLS"
if [[ $1 == launch ]]; then
  for word; do
    case $word in
      --die_at=*) echo "[0] told of the end of rank 1: rank 1 has died"; exit 137 ;;
      --at_end=*) bash -c "${word#*=}" ;;
    esac
  done
fi
for word; do
  if [[ $word == "--check=${STUCK:-none}" ]]; then
    echo $$ >"$CALLS.pid"
    trap '' TERM; while :; do sleep 0.1; done
  fi
  if [[ $word == "--check=${BROKEN:-none}" ]]; then echo "bits differ"; exit 1; fi
  if [[ $word == "--check=${KILLED:-none}" ]]; then kill -KILL $$; fi
done
case $* in
  *--check=devices*) echo "accelerators: $GPUS" ;;
  *--check=near-full*) echo "no completed step made the allocator retry"; exit 77 ;;
  *) echo "fine" ;;
esac
"""

RUN_TESTS = r"""#!/usr/bin/env bash
echo "run_tests ${GPIPE_TEST_DEVICES:-all} ${CUDA_MODULE_LOADING:-}" >>"$CALLS"
echo "3 passed, 0 failed"
"""

NVIDIA_SMI = r"""#!/usr/bin/env bash
if [[ $1 == --query-compute-apps=* ]]; then
  echo "7, GPU-a"
  echo "7, GPU-b"
  # The first call is the one before the ranks start.
  if [[ -e $CALLS.smi ]]; then printf '%b' "$CONTEXTS"; fi
  touch "$CALLS.smi"
fi
"""

NSYS = r"""#!/usr/bin/env bash
for word; do
  case $word in --output=*) touch "${word#*=}.nsys-rep" ;; esac
done
echo "profile written"
"""


def runs(pid):
    """Returns whether a process runs. A zombie does not: its new parent, which may be
    another program, has not waited for it yet.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class GpuCheckTest(unittest.TestCase):

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.home = pathlib.Path(self.scratch.name)
        self.bin = self.home / "bin"
        for folder in (self.home / "packed", self.bin):
            folder.mkdir()
        self.script = self.home / "packed/gpu_check.sh"
        shutil.copy(SCRIPT, self.script)
        self.place("packed/run", RUN)
        self.place("packed/run_tests", RUN_TESTS)
        self.environment = {
            # Only what Debian installs, so that the tools of this machine are not found.
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "CALLS": str(self.home / "calls"),
            "GPUS": "2",
            "GPU_CHECK_GRACE": "1",
            "CONTEXTS": "8, GPU-a\\n9, GPU-b\\n",
        }

    def place(self, name, text):
        path = self.home / name
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *options, **variables):
        """Returns (exit status, {row: (outcome, reason)}, stdout and stderr)."""
        done = subprocess.run(
            ["bash", str(self.script), f"--output={self.home}/out", *options],
            env={**self.environment, **variables}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=100, check=False)
        table = self.home / "out/table.txt"
        rows = {}
        for line in table.read_text().splitlines() if table.exists() else []:
            name, outcome, reason = line[:13].strip(), line[14:26].strip(), line[37:]
            rows[name] = (outcome, reason)
        return done.returncode, rows, done.stdout

    def calls(self):
        return (self.home / "calls").read_text().splitlines()

    def test_a_machine_with_two_gpus_passes_every_row(self):
        self.place("bin/nvidia-smi", NVIDIA_SMI)
        self.place("bin/nsys", NSYS)
        status, rows, output = self.run_script()
        self.assertEqual(status, 0, output)
        self.assertEqual(rows, {
            "devices": ("passed", "accelerators: 2"),
            "tests_one": ("passed", "3 passed, 0 failed"),
            "tests_all": ("passed", "3 passed, 0 failed"),
            "eager": ("passed", "3 passed, 0 failed"),
            "near_full": ("not possible", "no completed step made the allocator retry"),
            "ranks_host": ("passed", "fine"),
            "ranks_direct": ("passed", "fine"),
            "killed": ("passed", "rank 0 was told each time: host direct"),
            "contexts": ("passed", "no process has contexts on several GPUs"),
            "memory": ("passed", "fine"),
            "lstm": ("passed", "fine"),
            "order": ("passed", "fine"),
            "nsys": ("passed", "profile written"),
        })
        tests = [call for call in self.calls() if call.startswith("run_tests")]
        self.assertEqual(tests, ["run_tests 1 ", "run_tests all ", "run_tests all EAGER"])
        with tarfile.open(self.home / "out.tar.gz") as archive:
            names = set(archive.getnames())
        self.assertLessEqual({"out/table.txt", "out/machine.txt", "out/order.log",
                              "out/order.nsys-rep", "out/contexts.txt"}, names)

    def test_one_gpu_and_missing_tools_make_rows_impossible(self):
        status, rows, output = self.run_script(GPUS="1")
        self.assertEqual(status, 0, output)
        for name, reason in (("tests_all", "needs 2 GPUs, there are 1"),
                             ("ranks_direct", "needs 2 GPUs, there are 1"),
                             ("contexts", "needs 2 GPUs, there are 1"),
                             ("nsys", "nsys is missing")):
            self.assertEqual(rows[name], ("not possible", reason))
        self.assertEqual(rows["killed"], ("passed", "rank 0 was told each time: host"))
        self.assertFalse([call for call in self.calls() if "direct" in call])

    def test_a_failed_row_fails_the_script_and_the_next_rows_run(self):
        status, rows, _ = self.run_script("--only=lstm,order", BROKEN="lstm")
        self.assertEqual(status, 1)
        self.assertEqual(rows, {"devices": ("passed", "accelerators: 2"),
                                "lstm": ("FAILED", "exit status 1: bits differ"),
                                "order": ("passed", "fine")})

    def test_a_row_that_does_not_end_is_killed_and_the_next_row_runs(self):
        status, rows, _ = self.run_script("--only=memory,order", "--limit=1", STUCK="memory")
        self.assertEqual(status, 1)
        self.assertEqual(rows["memory"][0], "FAILED")
        self.assertRegex(rows["memory"][1], "^killed after 1 s; last line: ")
        self.assertEqual(rows["order"], ("passed", "fine"))
        self.assertFalse(runs((self.home / "calls.pid").read_text().strip()))

    def test_a_program_that_ends_after_sigterm_is_stopped(self):
        self.place("packed/run", RUN.replace("trap '' TERM; ", ""))
        status, rows, _ = self.run_script("--only=memory", "--limit=1", STUCK="memory")
        self.assertEqual(status, 1)
        self.assertEqual(rows["memory"][0], "FAILED")
        self.assertRegex(rows["memory"][1], "^stopped after 1 s; last line: ")

    def test_a_killed_program_is_not_reported_as_a_timeout(self):
        status, rows, _ = self.run_script("--only=order", KILLED="order")
        self.assertEqual(status, 1)
        self.assertRegex(rows["order"][1], "^killed by signal 9")

    def test_a_second_context_of_a_rank_fails(self):
        self.place("bin/nvidia-smi", NVIDIA_SMI)
        status, rows, _ = self.run_script(
            "--only=contexts", CONTEXTS="8, GPU-a\\n9, GPU-b\\n9, GPU-a\\n")
        self.assertEqual(status, 1)
        self.assertEqual(rows["contexts"], (
            "FAILED", "exit status 1: processes with contexts on several GPUs: 9"))

    def test_a_rank_that_is_not_told_of_a_death_fails(self):
        self.place("packed/run", RUN.replace("told of the end", "waits for the end"))
        status, rows, _ = self.run_script("--only=killed")
        self.assertEqual(status, 1)
        self.assertEqual(rows["killed"], (
            "FAILED", "exit status 1: a rank killed at 'connected' with --transfers=host: "
            "status 137, or rank 0 was not told"))

    def test_a_machine_without_gpu_fails_and_runs_nothing(self):
        status, rows, _ = self.run_script(GPUS="0")
        self.assertEqual(status, 1)
        self.assertEqual(rows.pop("devices"), ("FAILED", "exit status 1: accelerators: 0"))
        self.assertEqual(len(rows), 12)
        self.assertEqual(set(rows.values()),
                         {("not possible", "the row 'devices' has failed")})
        self.assertEqual(self.calls(), ["gpu_probe --check=devices"])

    def test_list_names_all_rows_and_runs_nothing(self):
        status, rows, output = self.run_script("--list")
        self.assertEqual((status, rows), (0, {}))
        self.assertEqual(len(output.splitlines()), 13)
        self.assertFalse((self.home / "out").exists())

    def test_wrong_options_are_refused(self):
        for option, text in (("--only=speed", "there is no row 'speed'"),
                             ("--limit=0", "--limit=0: must be from 1 to 999999 seconds"),
                             ("--fast", "unknown option '--fast'")):
            status, _, output = self.run_script(option)
            self.assertEqual(status, 2)
            self.assertIn(text, output)

    def test_results_of_an_earlier_run_are_kept(self):
        (self.home / "out").mkdir()
        status, _, output = self.run_script()
        self.assertEqual(status, 2)
        self.assertIn("exists: give another --output, or remove it", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
