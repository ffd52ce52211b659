#!/usr/bin/env python3
"""Runs gpu_check.sh and run_tests with stand-ins for the packed programs and tools."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).parent

# The stand-in of `run`. It answers as the tests do on a machine with $GPUS GPUs. The
# variable $BROKEN is the beginning of the name of a case that fails, and $STUCK of one
# that never ends, not even after SIGTERM.
RUN = r"""#!/usr/bin/env bash
echo "$*${GPIPE_NCCL:+ with ${GPIPE_NCCL##*/}}" >>"$CALLS"
case $* in
  *--gtest_filter=\*.${STUCK:-none}*)
    trap '' TERM
    echo "waits for ever"
    echo $$ >"$CALLS.pid"
    while :; do sleep 0.1; done
    ;;
  *--gtest_filter=\*.${BROKEN:-none}*)
    echo "bits differ"
    echo "[  FAILED  ] Hardware.Bits (3 ms)"
    echo " 1 FAILED TEST"
    exit 1
    ;;
  ${FAILING:-none}\ *)
    echo "out of memory" >&2
    exit 2
    ;;
  *--gtest_filter=\*.${KILLED:-none}*) kill -KILL $$ ;;
  *--gtest_filter=\*.Devices) echo "accelerators: $GPUS" ;;
  *--gtest_filter=\*.NearlyFull*)
    echo "no completed step made the allocator retry"
    echo "[  SKIPPED ] Hardware.NearlyFullMemoryChangesNoBit (3 ms)"
    echo "[  PASSED  ] 0 tests."
    exit
    ;;
  *Refused*) echo "rank 0 has the same device" ;;
  --check\ *) exit ;;
  *) echo "fine" ;;
esac
if [[ $* == *HaveTheBits* ]]; then bash -c "${GPIPE_TEST_AT_END:-}"; fi
if [[ $* == *--gtest_filter=* ]]; then
  echo "[       OK ] Hardware.Case (3 ms)"
  echo "[  PASSED  ] 1 test."
fi
"""

RUN_TESTS = r"""#!/usr/bin/env bash
echo "run_tests ${GPIPE_TEST_DEVICES:-all} ${CUDA_MODULE_LOADING:-} ${*:2}" \
  "${GPIPE_NCCL:+with ${GPIPE_NCCL##*/}}" >>"$CALLS"
if [[ -n ${BROKEN_TEST:-} ]]; then
  mkdir -p "${1#*=}"
  echo "[  FAILED  ] $BROKEN_TEST (3 ms)" >"${1#*=}/a_cuda.log"
  echo "2 passed, 1 failed"
  exit 1
fi
echo "3 passed, 0 failed"
"""

COMPARE_PEERS = r"""import os, sys
with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
    print("compare_peers", *sys.argv[1:], file=calls)
print("| peers |")
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

# A stand-in of `run` for run_tests: a test passes if another one runs at the same time.
RUN_TOGETHER = r"""#!/usr/bin/env bash
touch "$TOGETHER/$1"
for ((i = 0; i < 50; ++i)); do
  if (($(ls "$TOGETHER" | wc -l) == 2)); then
    echo "[  PASSED  ] 4 tests."
    exit
  fi
  sleep 0.1
done
echo "[  FAILED  ] 1 test, listed below:"
exit 1
"""


def runs(pid):
    """Returns whether a process runs. A zombie does not: its new parent, which may be
    another program, has not waited for it yet.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends meanwhile
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class GpuCheckTest(unittest.TestCase):

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.home = pathlib.Path(self.scratch.name)
        self.bin = self.home / "bin"
        for folder in ("packed/tests", "packed/benchmarks", "packed/tools",
                       "packed/peers/tools", "bin", "tmp"):
            (self.home / folder).mkdir(parents=True)
        self.script = self.home / "packed/gpu_check.sh"
        for name in ("gpu_check.sh", "gpu_rows.sh"):
            shutil.copy(TOOLS / name, self.home / "packed")
        self.place("packed/run", RUN)
        self.place("packed/run_tests", RUN_TESTS)
        self.place("packed/README", "commit    abc\n")
        self.place("packed/tests/a_cuda", "")
        self.place("packed/peers/tools/compare_peers", COMPARE_PEERS)
        self.archive = self.home / "out.tar.gz"
        self.environment = {
            # Only what Debian installs, so that the tools of this machine are not found.
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "TMPDIR": str(self.home / "tmp"),
            "CALLS": str(self.home / "calls"),
            "GPUS": "2",
            "GPU_CHECK_GRACE": "1",
            "CONTEXTS": "8, GPU-a\\n9, GPU-b\\n",
        }

    def place(self, name, text):
        path = self.home / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *options, **variables):
        return subprocess.Popen(
            ["bash", str(self.script), f"--output={self.archive}", *options],
            env={**self.environment, **variables}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)

    def run_script(self, *options, status=0, **variables):
        """Expects the exit status. Returns ({row: (outcome, reason)}, stdout and stderr)."""
        process = self.start(*options, **variables)
        output, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, status, output)
        return self.rows(), output

    def packed_file(self, name):
        with tarfile.open(self.archive) as archive:
            return archive.extractfile(f"out/{name}").read().decode()

    def rows(self):
        if not self.archive.exists():
            return {}
        found = {}
        for line in self.packed_file("table.txt").splitlines():
            found[line[8:26].strip()] = (line[27:39].strip(), line[48:])
        return found

    def calls(self):
        return (self.home / "calls").read_text().splitlines()

    def stuck_row(self, process):
        """Waits until the row of $STUCK runs, and returns the process of its program."""
        path = self.home / "calls.pid"
        while not (path.exists() and path.read_text().strip()):
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        return int(path.read_text())

    def test_a_machine_with_two_gpus_passes_every_row_of_correctness(self):
        self.place("bin/nvidia-smi", NVIDIA_SMI)
        rows, _ = self.run_script("--jobs=3")
        self.assertEqual(rows, {
            "devices": ("passed", "accelerators: 2"),
            "libraries": ("passed", "0 programs do not find their libraries"),
            "tests_one": ("passed", "3 passed, 0 failed"),
            "lstm": ("passed", "fine"),
            "attention": ("passed", "fine"),
            "order": ("passed", "fine"),
            "ranks_host": ("passed", "fine"),
            "ranks_direct": ("passed", "fine"),
            "ranks_tested": ("passed", "fine"),
            "contexts": ("passed", "no process has contexts on several GPUs"),
            "replicas": ("passed", "fine"),
            "refused": ("not possible", "needs one GPU without --nccl, there are 2"),
            "memory": ("passed", "fine"),
            "near_full": ("not possible", "no completed step made the allocator retry"),
            "killed": ("passed", "fine"),
            "tests_all": ("passed", "3 passed, 0 failed"),
        })
        tests = [call for call in self.calls() if call.startswith("run_tests")]
        self.assertEqual(tests, ["run_tests 1  --jobs=3 --timeout=101 ",
                                 "run_tests all  --jobs=3 --timeout=101 "])
        with tarfile.open(self.archive) as archive:
            names = set(archive.getnames())
        self.assertLessEqual({"out/table.txt", "out/machine.txt", "out/order.log",
                              "out/contexts.txt"}, names)
        self.assertIn("commit    abc", self.packed_file("machine.txt"))
        self.assertEqual(list((self.home / "tmp").iterdir()), [])

    def test_named_rows_run_alone(self):
        self.place("bin/nsys", NSYS)
        _, output = self.run_script("--only=d.vices", status=2)
        self.assertIn("there is no row 'd.vices'; see --list", output)
        rows, _ = self.run_script("--only=eager,nsys")
        self.assertEqual(rows, {"devices": ("passed", "accelerators: 2"),
                                "eager": ("passed", "3 passed, 0 failed"),
                                "nsys": ("passed", "profile written")})
        self.assertIn("run_tests all EAGER", "\n".join(self.calls()))
        with tarfile.open(self.archive) as archive:
            self.assertIn("out/order.nsys-rep", archive.getnames())

    def test_the_speed_part_puts_all_partitions_on_one_gpu(self):
        rows, output = self.run_script("--part=speed", GPUS="1")
        self.assertEqual(list(rows), [
            "devices", "peers_resnet101", "peers_resnet101_2", "resnet101", "unet_memory",
            "transformer_memory", "offload_none", "offload_2", "plan", "amp",
            "peers_transformer", "peers_hosts", "unet_memory_2"])
        self.assertEqual({outcome for outcome, _ in rows.values()}, {"passed"})
        self.assertEqual(rows["resnet101"][1], "see resnet101.md")
        self.assertEqual(self.packed_file("resnet101.md"), "fine\n")
        self.assertIn("| peers |", output)
        calls = "\n".join(self.calls())
        self.assertRegex(calls, "resnet101_speed --mode=measure .*--devices=0,0 .*"
                         "--samples=1536")
        self.assertRegex(calls, "compare_peers .*--devices=cuda:0 .*--balance=370 ")
        self.assertRegex(calls, "compare_peers .*--devices=cuda:0,cuda:0 ")
        self.assertNotRegex(calls, "compare_peers .*pipelining")  # needs NCCL 2.31
        self.assertRegex(calls, "train --model=transformer .*--devices=cuda:0,cuda:0 .*"
                         "--offload=2")

    def test_one_gpu_and_missing_tools_make_rows_impossible(self):
        rows, _ = self.run_script(
            "--only=tests_all,ranks_direct,refused,killed,contexts,nsys", GPUS="1")
        for name, reason in (("tests_all", "needs 2 GPUs, there are 1"),
                             ("ranks_direct", "needs 2 GPUs, there are 1"),
                             ("contexts", "needs 2 GPUs, there are 1"),
                             ("nsys", "nsys is missing")):
            self.assertEqual(rows[name], ("not possible", reason))
        self.assertEqual(rows["refused"], ("passed", "rank 0 has the same device"))
        killed = [call for call in self.calls() if "AreTold" in call]
        self.assertEqual(len(killed), 1)
        self.assertIn("ThroughTheHosts", killed[0])

    def test_a_newer_nccl_lets_two_ranks_use_one_gpu(self):
        library = self.home / "libnccl.so.2"
        library.write_text("")
        with tarfile.open(self.home / "packed/nccl.tar.xz", "w:xz") as archive:
            archive.add(library, "libnccl.so.2")
        for options in ((), (f"--nccl={library}",)):
            self.archive.unlink(missing_ok=True)
            rows, _ = self.run_script(
                "--only=ranks_host,ranks_direct,replicas,refused,killed", *options, GPUS="1")
            self.assertEqual(rows["ranks_direct"], ("passed", "fine"))
            self.assertEqual(rows["replicas"], ("passed", "fine"))
            self.assertEqual(rows["refused"][0], "not possible")
            self.assertEqual(rows["killed"], ("passed", "fine"))
            self.assertRegex(self.packed_file("machine.txt"), "one GPU: .*/libnccl.so.2\n")
            calls = "\n".join(self.calls())
            for case in ("HaveTheBitsOfOneProcess", "AsReplicasHaveTheSumsOfOneProcess",
                         "AreToldOfTheEndOfTheOther"):
                self.assertRegex(calls, f"{case}ByDirectTransfers with libnccl.so.2")
                self.assertNotRegex(calls, f"{case}ThroughTheHosts with libnccl.so.2")

    def test_several_gpus_use_the_nccl_of_libtorch_unless_another_is_given(self):
        library = self.home / "packed/libnccl.so.2"
        library.write_text("")
        for options, used in ((), False), ((f"--nccl={library}",), True):
            self.archive.unlink(missing_ok=True)
            rows, _ = self.run_script("--only=ranks_direct", *options, GPUS="2")
            self.assertEqual(rows["ranks_direct"], ("passed", "fine"))
            call = [each for each in self.calls() if "ByDirectTransfers" in each][-1]
            self.assertEqual(call.endswith("with libnccl.so.2"), used)

    def test_a_rehearsal_goes_on_without_a_gpu(self):
        for part in ("correctness", "speed"):
            self.archive.unlink(missing_ok=True)
            rows, _ = self.run_script(f"--part={part}", "--rehearsal", GPUS="0")
            self.assertEqual(rows["devices"],
                             ("not possible", "accelerators: 0; the rehearsal uses the CPU"))
        self.assertEqual(rows["resnet101"], ("passed", "see resnet101.md"))
        calls = "\n".join(self.calls())
        self.assertIn("--gtest_list_tests", calls)
        self.assertRegex(calls, "resnet101_speed .*--devices=cpu")
        self.assertNotIn("cuda:0", calls)

    def test_a_checkout_unpacks_its_archive(self):
        (self.home / "checkout/tools").mkdir(parents=True)
        (self.home / "checkout/gpu").mkdir()
        for name in ("gpu_check.sh", "gpu_rows.sh"):
            shutil.copy(TOOLS / name, self.home / "checkout/tools")
        self.script = self.home / "checkout/tools/gpu_check.sh"
        path = self.home / "checkout/gpu/gpipe-cuda.tar.xz"
        with tarfile.open(path, "w:xz") as archive:
            archive.add(self.home / "packed", "gpipe-cuda")
        rows, _ = self.run_script("--only=lstm")
        self.assertEqual(rows["lstm"], ("passed", "fine"))
        self.archive.unlink()
        path.write_bytes(path.read_bytes()[:-100])
        rows, output = self.run_script("--only=lstm", status=2)
        self.assertEqual(rows, {})
        self.assertIn("gpipe-cuda.tar.xz cannot be unpacked: pack it again", output)
        self.assertEqual(list((self.home / "tmp").iterdir()), [])

    def test_a_failed_row_fails_the_script_and_the_next_rows_run(self):
        rows, _ = self.run_script("--only=lstm,order", status=1, BROKEN="ADropoutLstm")
        self.assertEqual(rows, {"devices": ("passed", "accelerators: 2"),
                                "lstm": ("FAILED", "exit status 1: "
                                         "[  FAILED  ] Hardware.Bits (3 ms)"),
                                "order": ("passed", "fine")})

    def test_a_program_of_figures_that_fails_fails_its_row(self):
        rows, _ = self.run_script("--only=offload_2,plan,amp", status=1, FAILING="train")
        for name in ("offload_2", "plan", "amp"):
            self.assertEqual(rows[name], ("FAILED", "exit status 2: out of memory"))

    def test_failed_test_cases_are_named(self):
        rows, output = self.run_script("--only=tests_one", status=1, BROKEN_TEST="Step.Sums")
        self.assertEqual(rows["tests_one"], ("FAILED", "exit status 1: 2 passed, 1 failed"))
        self.assertIn("a_cuda.log:[  FAILED  ] Step.Sums (3 ms)", output)

    def test_a_row_that_does_not_end_is_killed_and_the_next_row_runs(self):
        rows, _ = self.run_script("--only=order,memory", "--limit=4", status=1,
                                  STUCK="RandomDelays")
        self.assertEqual(rows["order"],
                         ("FAILED", "killed after 4 s; last line: waits for ever"))
        self.assertEqual(rows["memory"], ("passed", "fine"))
        self.assertFalse(runs((self.home / "calls.pid").read_text().strip()))

    def test_a_program_that_ends_after_sigterm_is_stopped(self):
        self.place("packed/run", RUN.replace("trap '' TERM\n", ""))
        rows, _ = self.run_script("--only=memory", "--limit=4", status=1, STUCK="Peaks")
        self.assertEqual(rows["memory"][0], "FAILED")
        self.assertRegex(rows["memory"][1], "^stopped after 4 s; last line: ")

    def test_nothing_starts_after_the_budget_and_a_row_gets_what_is_left(self):
        rows, _ = self.run_script("--only=order,memory", "--budget=8", STUCK="RandomDelays")
        self.assertEqual(rows["order"][0], "no time")
        self.assertRegex(rows["order"][1],
                         "^killed after [1-8] s, at the end of the budget; last line: waits")
        self.assertEqual(rows["memory"], ("no time", "the budget of 8 s is used up"))
        self.assertFalse([call for call in self.calls() if "Peaks" in call])

    def test_the_budget_does_not_count_the_packing(self):
        (self.home / "checkout/tools").mkdir(parents=True)
        for name in ("gpu_check.sh", "gpu_rows.sh"):
            shutil.copy(TOOLS / name, self.home / "checkout/tools")
        self.script = self.home / "checkout/tools/gpu_check.sh"
        self.place("checkout/tools/pack.sh",
                   f"#!/usr/bin/env bash\nsleep 6\nmkdir -p {self.home}/checkout/gpu\n"
                   f"cp -r {self.home}/packed {self.home}/gpipe-cuda\n"
                   f"tar -C {self.home} -cJf {self.home}/checkout/gpu/gpipe-cuda.tar.xz "
                   "gpipe-cuda\n")
        rows, _ = self.run_script("--only=lstm", "--budget=6")
        self.assertEqual(rows["lstm"], ("passed", "fine"))

    def test_without_time_for_the_devices_no_row_has_failed(self):
        rows, _ = self.run_script("--only=lstm", "--budget=1", GPU_CHECK_GRACE="2")
        self.assertEqual(set(rows.values()), {("no time", "the budget of 1 s is used up")})

    def test_an_archive_that_cannot_be_written_fails_and_leaves_the_logs(self):
        self.place("bin/tar", "#!/usr/bin/env bash\nexit 2\n")
        _, output = self.run_script("--only=lstm", status=1)
        self.assertNotIn("send back: ", output)
        folder = re.search("send back the folder (.*)\n", output)[1]
        self.assertIn("lstm", (pathlib.Path(folder) / "table.txt").read_text())

    def test_a_stopped_run_brings_back_what_it_has(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            (self.home / "calls.pid").unlink(missing_ok=True)
            self.archive.unlink(missing_ok=True)
            process = self.start("--only=lstm,order,memory", STUCK="RandomDelays")
            program = self.stuck_row(process)
            process.send_signal(number)
            output, _ = process.communicate(timeout=50)
            self.assertEqual(process.returncode, code, output)
            self.assertEqual(self.rows(), {
                "devices": ("passed", "accelerators: 2"),
                "lstm": ("passed", "fine"),
                "order": ("stopped", "last line: waits for ever")})
            self.assertEqual(self.packed_file("order.log"), "waits for ever\n")
            self.assertFalse(runs(program))
            self.assertEqual(list((self.home / "tmp").iterdir()), [])
            self.assertIn(f"send back: {self.archive}", output)

    def test_a_killed_run_has_written_the_rows_that_ended(self):
        process = self.start("--only=lstm,order", STUCK="RandomDelays")
        program = self.stuck_row(process)
        process.kill()
        process.communicate(timeout=50)
        os.kill(program, signal.SIGKILL)
        self.assertEqual(self.rows(), {"devices": ("passed", "accelerators: 2"),
                                       "lstm": ("passed", "fine")})

    def test_a_killed_program_is_not_reported_as_a_timeout(self):
        rows, _ = self.run_script("--only=order", status=1, KILLED="RandomDelays")
        self.assertRegex(rows["order"][1], "^killed by signal 9")

    def test_a_second_context_of_a_rank_fails(self):
        self.place("bin/nvidia-smi", NVIDIA_SMI)
        rows, _ = self.run_script("--only=contexts", status=1,
                                  CONTEXTS="8, GPU-a\\n9, GPU-b\\n9, GPU-a\\n")
        self.assertEqual(rows["contexts"], (
            "FAILED", "exit status 1: processes with contexts on several GPUs: 9"))

    def test_a_build_without_nccl_runs_rows_through_the_hosts(self):
        self.place("bin/nvidia-smi", NVIDIA_SMI)
        self.place("packed/run", RUN.replace("  *Refused*)", """\
  *ByDirectTransfers | *ByTestedTransfers)
    echo "no engine for direct transfers"
    echo "[  SKIPPED ] Ranks.Case (3 ms)"
    echo "[  PASSED  ] 0 tests."
    exit
    ;;
  *Refused*)"""))
        rows, _ = self.run_script("--only=ranks_direct,replicas,killed,contexts", status=1,
                                  CONTEXTS="9, GPU-a\\n9, GPU-b\\n")
        reason = "no engine for direct transfers"
        self.assertEqual(rows["ranks_direct"], ("not possible", reason))
        self.assertEqual(rows["replicas"], ("passed", reason))
        self.assertEqual(rows["killed"], ("passed", reason))
        self.assertEqual(rows["contexts"], (
            "FAILED", "exit status 1: processes with contexts on several GPUs: 9"))

    def test_a_second_case_that_no_test_has_fails(self):
        self.place("packed/run", RUN.replace("[[ $* == *--gtest_filter=* ]]",
                                             "[[ $* != *ByDirect* ]]"))
        rows, _ = self.run_script("--only=killed", status=1)
        self.assertRegex(rows["killed"][1], "has no case AreToldOfTheEndOfTheOtherByDirect")

    def test_a_case_that_no_test_has_fails(self):
        self.place("packed/run", RUN.replace("[       OK ]", "[----------]"))
        rows, _ = self.run_script("--only=killed", status=1)
        self.assertEqual(rows["devices"], (
            "FAILED", "exit status 1: hardware_test_cuda has no case Devices"))

    def test_every_case_is_in_the_source_of_its_test(self):
        rows = (TOOLS / "gpu_rows.sh").read_text()
        for name, path in (("hardware", "gpipe/system_tests/hardware_test.cc"),
                           ("ranks", "gpipe/distributed/two_ranks_test.cc")):
            source = (TOOLS.parent / path).read_text()
            cases = re.findall(rf"\b{name} ([A-Z]\w+)", rows)
            if name == "ranks":
                cases += [case + way for case in re.findall(r"by_each_way ([A-Z]\w+)\b ;", rows)
                          for way in ("ThroughTheHosts", "ByDirectTransfers")]
            self.assertGreaterEqual(len(cases), 5)
            for case in cases:
                self.assertRegex(source, rf"TEST\(\w+, {case}\)")

    def test_a_machine_without_gpu_fails_and_runs_nothing(self):
        rows, _ = self.run_script(status=1, GPUS="0")
        self.assertEqual(rows.pop("devices"), ("FAILED", "exit status 1: accelerators: 0"))
        self.assertEqual(len(rows), 15)
        self.assertEqual(set(rows.values()),
                         {("not possible", "the row 'devices' has failed")})
        self.assertEqual(self.calls(), ["hardware_test_cuda --gtest_filter=*.Devices"])

    def test_list_names_all_rows_and_runs_nothing(self):
        rows, output = self.run_script("--list")
        self.assertEqual(rows, {})
        self.assertEqual(len(output.splitlines()), 30)
        self.assertFalse(self.archive.exists())

    def test_wrong_options_are_refused(self):
        for option, text in (("--only=fast", "there is no row 'fast'"),
                             ("--limit=0", "--limit=0: must be from 1 to 999999"),
                             ("--budget=5s", "--budget=5s: must be from 1 to 999999"),
                             ("--part=all", "--part=all: use correctness or speed"),
                             ("--nccl=none", "--nccl=none: there is no such file"),
                             ("--fast", "unknown option '--fast'")):
            _, output = self.run_script(option, status=2)
            self.assertIn(text, output)

    def test_results_of_an_earlier_run_are_kept(self):
        self.archive.write_text("results")
        process = self.start()
        output, _ = process.communicate(timeout=50)
        self.assertEqual(process.returncode, 2)
        self.assertIn("exists: give another --output, or remove it", output)
        self.assertEqual(self.archive.read_text(), "results")


class RunTestsTest(unittest.TestCase):

    def run_two(self, *options):
        """Runs two tests that wait for each other; returns (exit status, lines)."""
        with tempfile.TemporaryDirectory() as scratch:
            home = pathlib.Path(scratch)
            (home / "tests").mkdir()
            (home / "together").mkdir()
            for name in ("a_cuda", "b_cuda"):
                (home / "tests" / name).write_text("")
            shutil.copy(TOOLS / "packed/run_tests", home)
            (home / "run").write_text(RUN_TOGETHER)
            (home / "run").chmod(0o755)
            done = subprocess.run(
                [home / "run_tests", *options], text=True, stdout=subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", "TOGETHER": str(home / "together")},
                timeout=100, check=False)
            self.assertEqual((home / "logs/a_cuda.log").exists(), True)
            return done.returncode, done.stdout.splitlines()

    def test_jobs_run_at_the_same_time(self):
        status, lines = self.run_two("--jobs=2")
        self.assertEqual(status, 0, lines)
        self.assertEqual(lines[-1], "2 passed, 0 failed")
        self.assertRegex("\n".join(sorted(lines)), "PASSED a_cuda: 4 passed, [0-9]+ s\n"
                         "PASSED b_cuda: 4 passed, [0-9]+ s")

    def test_a_failed_test_fails_the_run(self):
        status, lines = self.run_two("--timeout=1")
        self.assertEqual(status, 1)
        self.assertRegex(lines[0], "FAILED a_cuda: stopped after 1 s; ")
        # The second test finds that the first one has run.
        self.assertEqual(lines[-1], "1 passed, 1 failed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
