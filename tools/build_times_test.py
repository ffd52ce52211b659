#!/usr/bin/env python3
"""Checks the tables of build_times.py for small builds, and its errors for wrong files."""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).parent / "build_times.py"

ACTIONS = [
    ("Compiling gpipe/runtime/cell/cell.cc", 4.0),
    ("Compiling gpipe/runtime/cell/cell.cc [for tool]", 2.0),
    ("Compiling gpipe/skip.cc", 3.0),
    ("Linking gpipe/skip_test_cpu", 1.0),
    ("Testing //gpipe:skip_test_cpu (shard 1 of 2)", 2.0),
    ("Testing //gpipe:skip_test_cpu (shard 2 of 2)", 3.0),
    ("Testing //gpipe/testing/simulated:order_test", 1.0),
    ("Executing genrule @libpng//:config", 0.5),
    ("Creating runfiles tree bazel-out/k8-opt/bin/data/text/x.runfiles", 0.25),
    ("Workspace status.txt", 0.25),
]

ONE_BUILD = """\
## Build

| Quantity | Value |
| --- | ---: |
| Wall time, s | 10.0 |
| Sum over actions, s | 17.0 |
| Utilisation of 2 cores | 85.0% |

## Kinds of action

| Kind | Actions | Seconds | Share |
| --- | ---: | ---: | ---: |
| compile | 3 | 9.0 | 52.9% |
| link | 1 | 1.0 | 5.9% |
| test | 3 | 6.0 | 35.3% |
| other | 3 | 1.0 | 5.9% |
| total | 10 | 17.0 | 100.0% |

## Folders

| Folder | Kind | Actions | Seconds | Share |
| --- | --- | ---: | ---: | ---: |
| gpipe/runtime | compile | 2 | 6.0 | 35.3% |
| gpipe | test | 2 | 5.0 | 29.4% |
| gpipe | compile | 1 | 3.0 | 17.6% |
| gpipe | link | 1 | 1.0 | 5.9% |
| gpipe/testing | test | 1 | 1.0 | 5.9% |
| external/libpng | other | 1 | 0.5 | 2.9% |
| (root) | other | 1 | 0.2 | 1.5% |
| data/text | other | 1 | 0.2 | 1.5% |

## Slowest files to compile

| File | Actions | Seconds |
| --- | ---: | ---: |
| gpipe/runtime/cell/cell.cc | 2 | 6.0 |

## Slowest tests

| Test | Runs | Seconds |
| --- | ---: | ---: |
| //gpipe:skip_test_cpu | 2 | 5.0 |
"""

TWO_BUILDS = """\
## Build

| Quantity | Value before | Value after | Ratio |
| --- | ---: | ---: | ---: |
| Wall time, s | 9.0 | 4.0 | 0.44 |
| Sum over actions, s | 8.0 | 6.0 | 0.75 |
| Utilisation of 4 cores | 22.2% | 37.5% | 1.69 |

## Kinds of action

| Kind | Actions before | Actions after | Seconds before | Seconds after | Share before | Share after | Ratio |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| compile | 1 | 1 | 8.0 | 2.0 | 100.0% | 33.3% | 0.25 |
| link | 0 | 1 | 0.0 | 4.0 | 0.0% | 66.7% | - |
| test | 0 | 0 | 0.0 | 0.0 | 0.0% | 0.0% | - |
| other | 0 | 1 | 0.0 | 0.0 | 0.0% | 0.0% | - |
| total | 1 | 3 | 8.0 | 6.0 | 100.0% | 100.0% | 0.75 |

## Folders

| Folder | Kind | Actions before | Actions after | Seconds before | Seconds after | Share before | Share after | Ratio |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| gpipe | compile | 1 | 1 | 8.0 | 2.0 | 100.0% | 33.3% | 0.25 |
| gpipe | link | 0 | 1 | 0.0 | 4.0 | 0.0% | 66.7% | - |

## Slowest files to compile

| File | Actions before | Actions after | Seconds before | Seconds after | Ratio |
| --- | ---: | ---: | ---: | ---: | ---: |
| gpipe/a.cc | 1 | 1 | 8.0 | 2.0 | 0.25 |

## Slowest tests

| Test | Runs before | Runs after | Seconds before | Seconds after | Ratio |
| --- | ---: | ---: | ---: | ---: | ---: |
"""

TESTS_OF_BUILD = """\
| Test targets passed | 2 |
| Test targets failed | 1 |
| Test targets skipped | 1 |
| Test targets not run | 1 |
| Test cases passed | 3 |
| Test cases failed | 1 |
"""

SLOWEST_TESTS = """\
## Slowest tests

| Test | Runs | Seconds |
| --- | ---: | ---: |
| //gpipe:skip_test_cpu | 2 | 4.0 |
| //gpipe:bad_test | 1 | 0.5 |
"""


def trace_event(name, seconds, start=0.0, **more):
    """Returns a trace event of an action, whose times are microseconds in a profile."""
    event = dict(
        ph="X", cat="action processing", name=name, ts=start * 1e6, dur=seconds * 1e6
    )
    return dict(event, **more)


def profile_of(actions, wall, *more):
    """Returns the text of a profile of a build that takes `wall` seconds."""
    events = [trace_event(*action) for action in actions]
    # The build starts before 0, when Bazel's server starts.
    events.append(
        trace_event("Launch Blaze", wall, start=-1.0, cat="build phase marker")
    )
    events.append(
        {"ph": "C", "name": "action counters", "ts": 1e9, "args": {"action": 2}}
    )
    return json.dumps(
        {"otherData": {"build_id": "1"}, "traceEvents": events + list(more)}
    )


def configured(label, kind="cc_test rule"):
    """Returns the event of a target that Bazel has analysed."""
    return {
        "id": {"targetConfigured": {"label": label}},
        "configured": {"targetKind": kind},
    }


def summary(label, status):
    """Returns the event of the status of a test target."""
    return {
        "id": {"testSummary": {"label": label}},
        "testSummary": {"overallStatus": status},
    }


def result(label, report, shard=1, attempt=1, **more):
    """Returns the event of a run of a test, with the path of its test.xml."""
    key = {"label": label, "run": 1, "shard": shard, "attempt": attempt}
    output = [
        {"name": "test.log", "uri": "file:///none"},
        {"name": "test.xml", "uri": report.as_uri()},
    ]
    return {
        "id": {"testResult": key},
        "testResult": dict(more, testActionOutput=output),
    }


class BuildTimesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        """Returns the path of a new file in the test's folder."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run_program(self, *arguments):
        """Runs the tool and returns its exit status, stdout and stderr."""
        command = [sys.executable, "-B", PROGRAM, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def output(self, *arguments):
        """Runs the tool, expects no error, and returns stdout."""
        status, printed, errors = self.run_program(*arguments)
        self.assertEqual((status, errors), (0, ""))
        return printed

    def assert_error(self, message, *arguments):
        self.assertEqual(
            self.run_program(*arguments), (2, "", f"build_times: {message}\n")
        )

    def events_file(self):
        """Returns the path of events with each status, a retry, shards and a cached result."""
        good = self.write("good.xml", '<a><testcase name="a"/><testcase name="b"/></a>')
        one = self.write(
            "one.xml", '<a><testcase name="c"/><testcase name="d" status="notrun"/></a>'
        )
        bad = self.write("bad.xml", '<a><testcase name="e"><failure/></testcase></a>')
        skip, cached, failed = (
            "//gpipe:skip_test_cpu",
            "//gpipe:cached_test",
            "//gpipe:bad_test",
        )
        cuda, unbuilt = "//gpipe:skip_test_cuda", "//gpipe:unbuilt_test"
        events = [configured(label) for label in (skip, cached, failed, cuda, unbuilt)]
        events += [
            {"id": {"started": {"uuid": "1"}}, "started": {}},
            configured("//gpipe:gpipe", "cc_library rule"),
            {
                "id": {"targetCompleted": {"label": cuda}},
                "aborted": {"reason": "SKIPPED"},
            },
            # The first attempt fails, and its report does not count.
            result(skip, bad, attempt=1, testAttemptDurationMillis="1000"),
            result(skip, good, attempt=2, testAttemptDuration="3s"),
            result(cached, one, testAttemptDurationMillis="9000", cachedLocally=True),
            result(failed, bad, testAttemptDuration="0.500s"),
            summary(skip, "FLAKY"),
            summary(cached, "PASSED"),
            summary(failed, "FAILED"),
            summary(unbuilt, "NO_STATUS"),
        ]
        return self.write(
            "events.json", "".join(json.dumps(event) + "\n" for event in events)
        )

    def test_prints_the_tables_of_one_build(self):
        path = self.write("profile.json", profile_of(ACTIONS, 10.0))
        self.assertEqual(self.output(path, "--cores=2", "--top=1"), ONE_BUILD)

    def test_compares_two_builds_of_which_one_is_compressed(self):
        before = self.write(
            "before.json", profile_of([("Compiling gpipe/a.cc", 8.0)], 9.0)
        )
        # The name does not tell the kind of this action; the mnemonic does.
        link = trace_event(
            "Action gpipe/a", 4.0, start=-1.0, args={"mnemonic": "CppLink"}
        )
        actions = [
            ("Compiling gpipe/a.cc", 2.0),
            ("Writing file gpipe/a.cppmap", 0.001),
        ]
        text = profile_of(actions, 2.0, link)
        after = self.write("after.gz", gzip.compress(text.encode()))
        self.assertEqual(self.output(before, after, "--cores=4"), TWO_BUILDS)

    def test_reads_tests_from_build_events(self):
        path = self.write("profile.json", profile_of(ACTIONS, 10.0))
        printed = self.output(path, f"--events={self.events_file()}", "--cores=2")
        self.assertIn(
            "| Utilisation of 2 cores | 85.0% |\n" + TESTS_OF_BUILD + "\n", printed
        )
        self.assertTrue(printed.endswith("\n" + SLOWEST_TESTS), printed)

    def test_says_that_bazel_merged_events(self):
        merged = trace_event("merged 7 events", 1.5, cat="Unknown event")
        path = self.write("profile.json", profile_of(ACTIONS, 10.0, merged))
        self.assertEqual(
            self.output(path, "--cores=2", "--top=1"),
            f"{ONE_BUILD}\n{path} lacks 7 short events (1.5 s), some of them actions. "
            "Pass --noslim_profile to Bazel to keep them.\n",
        )

    def test_prints_a_build_without_actions(self):
        path = self.write("profile.json", profile_of([], 10.0))
        self.assertIn("| total | 0 | 0.0 | - |\n", self.output(path))

    def test_refuses_a_file_that_is_not_a_profile(self):
        contents = {
            "text": "x",
            "list.json": "[]",
            "other_trace.json": '{"traceEvents": []}',
            "no_event.json": '{"otherData": {"build_id": "1"}, "traceEvents": []}',
            "cut.gz": gzip.compress(profile_of(ACTIONS, 10.0).encode())[:-20],
            "bytes": b"\xff\xfe\x00",
        }
        for name, content in contents.items():
            path = self.write(name, content)
            self.assert_error(
                f"{path} is not a Bazel profile; write one with "
                "./bazelw test //... --profile=FILE",
                path,
            )

    def test_refuses_a_file_that_is_missing(self):
        path = self.folder / "none"
        self.assert_error(f"cannot read {path}: No such file or directory", path)

    def test_refuses_a_file_that_is_not_build_events(self):
        profile = self.write("profile.json", profile_of(ACTIONS, 10.0))
        for events in (
            profile,
            self.write("empty", ""),
            self.write("cut", '{"id": {}}\n{"i'),
            self.write("id", '{"id": 1}'),
        ):
            self.assert_error(
                f"{events} is not a file of build events; write one with "
                "./bazelw test //... --build_event_json_file=FILE",
                profile,
                f"--events={events}",
            )

    def test_refuses_options_that_do_not_fit(self):
        wrong = {
            "give --events once per profile, in the same order, or not at all": "--events=c",
            "--cores must be at least 1 and --top at least 0": "--cores=0",
        }
        for message, option in wrong.items():
            status, printed, errors = self.run_program("a", "b", option)
            self.assertEqual((status, printed), (2, ""))
            self.assertEqual(
                errors.splitlines()[-1], f"build_times.py: error: {message}"
            )


if __name__ == "__main__":
    unittest.main()
