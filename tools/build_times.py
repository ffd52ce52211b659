#!/usr/bin/env python3
"""Prints where the time of a Bazel build goes, as Markdown tables.

    ./bazelw test //... --profile=/tmp/profile.gz --noslim_profile \\
        --build_event_json_file=/tmp/events.json
    tools/build_times.py /tmp/profile.gz --events=/tmp/events.json
    tools/build_times.py before.gz after.gz        # compares two builds

The seconds of an action are elapsed time, not CPU time. They include the time in
which the action waits for a free core, so the utilisation can exceed 100 % if
Bazel runs more jobs than there are cores. A ratio is the value after, divided by
the value before. Rows of less than 0.05 s are left out.

The seconds of a test are those of its action, which also sets up a sandbox. With
--events they are those of the test process, and cached results are left out. Each
shard and each attempt is one run. Test cases are counted in the test.xml files that
the events name, so run this tool before the next build replaces those files.
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import sys
import typing
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / ".ci"))
import count

KINDS = ("compile", "link", "test", "other")
# The first word of an action's name, or the mnemonic that newer Bazels add.
KIND_OF = {
    **dict.fromkeys(("Compiling", "CppCompile"), "compile"),
    **dict.fromkeys(("Linking", "CppLink", "CppArchive"), "link"),
    **dict.fromkeys(("Testing", "TestRunner"), "test"),
}


class InputError(Exception):
    """An input that the tool cannot use; the text tells the user what to do."""


class Action(typing.NamedTuple):
    """An action that Bazel ran; `subject` is the file or label that it is about."""

    kind: str
    subject: str
    seconds: float


class Profile(typing.NamedTuple):
    """A profile: its actions and the events that Bazel merged to shorten the file."""

    wall: float  # seconds
    actions: list
    merged: int
    merged_seconds: float


class Tests(typing.NamedTuple):
    """Test results: (label, seconds) of each run, and {title: number} of tests."""

    runs: list
    counts: dict


def load(path, parse, what, option):
    """Returns parse(bytes of the file); decompresses a gzip file before."""
    try:
        data = pathlib.Path(path).read_bytes()
        return parse(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, zlib.error):
        raise InputError(
            f"{path} is not {what}; write one with ./bazelw test //... --{option}=FILE"
        ) from None


def action_of(event):
    """Returns the action of a trace event of the category "action processing"."""
    name = event["name"]
    verb = name.split(" ")[0]
    kind = KIND_OF.get(
        event.get("args", {}).get("mnemonic"), KIND_OF.get(verb, "other")
    )
    # Bazel appends "(shard 1 of 2)", "(run 1 of 2)" or "[for tool]".
    subject = re.sub(r" [(\[].*", "", name).split(" ")[-1]
    return Action(kind, subject, event["dur"] / 1e6)


def parse_profile(data):
    """Returns the profile in a Chrome trace. Raises KeyError if it is not Bazel's."""
    trace = json.loads(data)
    trace["otherData"]["build_id"]  # Traces by other programs lack it.
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    merged = [e for e in events if re.fullmatch(r"merged \d+ events", e["name"])]
    start = min(e["ts"] for e in events)
    return Profile(
        wall=max(e["ts"] + e["dur"] - start for e in events) / 1e6,
        actions=[action_of(e) for e in events if e.get("cat") == "action processing"],
        merged=sum(int(e["name"].split(" ")[1]) for e in merged),
        merged_seconds=sum(e["dur"] for e in merged) / 1e6,
    )


def count_targets(events):
    """Returns the numbers of test targets by result."""
    targets, skipped, status = set(), set(), {}
    for event in events:
        label = next(iter(event["id"].values()), {}).get("label")
        if event.get("configured", {}).get("targetKind", "").endswith("_test rule"):
            targets.add(label)
        elif event.get("aborted", {}).get("reason") == "SKIPPED":
            skipped.add(label)
        elif (
            event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            != "NO_STATUS"
        ):
            status[label] = event["testSummary"]["overallStatus"]
    passed = sum(each in ("PASSED", "FLAKY") for each in status.values())
    return {
        "Test targets passed": passed,
        "Test targets failed": len(status) - passed,
        "Test targets skipped": len(targets & skipped),
        "Test targets not run": len(targets - skipped - set(status)),
    }


def count_cases(results):
    """Returns the numbers of test cases in the test.xml files that the results name."""
    reports = {}
    for test, result in results:
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.xml":
                # The last attempt of a run replaces the attempts before.
                run = test["label"], test.get("run"), test.get("shard")
                reports[run] = output["uri"]
    cases = [count.cases(uri) for uri in reports.values()]
    return {
        "Test cases passed": sum(len(passed) for passed, _ in cases),
        "Test cases failed": sum(len(failed) for _, failed in cases),
    }


def seconds_of(result):
    """Returns the duration of a testResult, whose field depends on Bazel's version."""
    if "testAttemptDuration" in result:
        return float(result["testAttemptDuration"].rstrip("s"))
    return int(result.get("testAttemptDurationMillis", 0)) / 1e3


def is_cached(result):
    """Returns whether a testResult is from Bazel's cache, so that no test ran."""
    remote = result.get("executionInfo", {}).get("cachedRemotely", False)
    return remote or result.get("cachedLocally", False)


def parse_events(data):
    """Returns the tests in build events. Raises ValueError if there is no event."""
    events = [json.loads(line) for line in data.splitlines()]
    if not events:
        raise ValueError
    results = [
        (e["id"]["testResult"], e["testResult"]) for e in events if "testResult" in e
    ]
    runs = [(test["label"], seconds_of(r)) for test, r in results if not is_cached(r)]
    return Tests(runs, {**count_targets(events), **count_cases(results)})


def read_tests(path, profile):
    """Returns the tests in a file of build events, or of the profile without a file."""
    if path is None:
        runs = [(a.subject, a.seconds) for a in profile.actions if a.kind == "test"]
        return Tests(runs, {})
    return load(path, parse_events, "a file of build events", "build_event_json_file")


def folder_of(subject):
    """Returns at most two path components of the folder of a file or label."""
    path = re.sub(r"^bazel-out/[^/]+/[^/]+/", "", subject)
    label = re.fullmatch(r"@*([^/@]*)//([^:]*)(:.*)?", path)
    if label:
        repository, package = label.group(1, 2)
        path = (f"external/{repository}/" if repository else "") + package + "/"
    return "/".join(path.split("/")[:-1][:2]) or "(root)"


def add_up(pairs):
    """Returns {key: (number, seconds)} for pairs of a key and seconds."""
    sums = {}
    for key, seconds in pairs:
        number, so_far = sums.get(key, (0, 0.0))
        sums[key] = (number + 1, so_far + seconds)
    return sums


def slowest(sums):
    """Returns the keys of at least 0.05 s in some build, the slowest first."""
    most = {key: max(s.get(key, (0, 0))[1] for s in sums) for s in sums for key in s}
    return sorted((k for k in most if most[k] >= 0.05), key=lambda k: (-most[k], k))


def ratio(values):
    """Returns the cell of the ratio of two builds; no cell for one build."""
    if len(values) == 1:
        return []
    return [f"{values[1] / values[0]:.2f}" if values[0] else "-"]


def markdown(title, names, columns, builds, rows):
    """Returns a table: text columns, then each numeric column once per build."""
    labels = [""] if builds == 1 else [" before", " after"]
    header = names + [column + label for column in columns for label in labels]
    header += ["Ratio"] * (builds - 1)
    rule = ["---"] * len(names) + ["---:"] * (len(header) - len(names))
    lines = [f"| {' | '.join(cells)} |" for cells in [header, rule] + rows]
    return "\n".join([f"## {title}", ""] + lines) + "\n"


def build_table(profiles, tests, spent, cores):
    """Returns the table of values that each build has once. `spent`: see sums_table()."""
    used = [s / (p.wall * cores) if p.wall else 0.0 for s, p in zip(spent, profiles)]
    values = [
        ("Wall time, s", "{:.1f}", [p.wall for p in profiles]),
        ("Sum over actions, s", "{:.1f}", spent),
        (f"Utilisation of {cores} cores", "{:.1%}", used),
    ]
    values += [(t, "{}", [each.counts[t] for each in tests]) for t in tests[0].counts]
    rows = [
        [title] + [form.format(v) for v in vs] + ratio(vs) for title, form, vs in values
    ]
    return markdown("Build", ["Quantity"], ["Value"], len(profiles), rows)


def sums_table(title, names, unit, sums, keys, spent=None):
    """Returns a table with a row per key. `sums` has the result of add_up() per build.

    A key is a tuple with one text per name. `spent`: the seconds of all actions of
    each build; the table has a column of shares if it is given.
    """
    rows = []
    for key in keys:
        numbers, seconds = zip(*(each.get(key, (0, 0.0)) for each in sums))
        row = [*key, *map(str, numbers), *(f"{s:.1f}" for s in seconds)]
        if spent:
            row += [
                f"{s / all_:.1%}" if all_ else "-" for s, all_ in zip(seconds, spent)
            ]
        rows.append(row + ratio(seconds))
    columns = [unit, "Seconds"] + (["Share"] if spent else [])
    return markdown(title, names, columns, len(sums), rows)


def report(profiles, tests, cores, top):
    """Returns all tables of one build, or of two builds side by side."""

    def sums(keys_of):
        pairs = lambda p: ((key, a.seconds) for a in p.actions for key in keys_of(a))
        return [add_up(pairs(profile)) for profile in profiles]

    kinds = sums(lambda a: [(a.kind,), ("total",)])
    folders = sums(lambda a: [(folder_of(a.subject), a.kind)])
    files = sums(lambda a: [(a.subject,)] if a.kind == "compile" else [])
    runs = [add_up(((label,), s) for label, s in each.runs) for each in tests]
    spent = [each.get(("total",), (0, 0.0))[1] for each in kinds]
    order = [(kind,) for kind in KINDS + ("total",)]
    by_folder, by_file, by_test = map(slowest, (folders, files, runs))
    tables = [
        build_table(profiles, tests, spent, cores),
        sums_table("Kinds of action", ["Kind"], "Actions", kinds, order, spent),
        sums_table("Folders", ["Folder", "Kind"], "Actions", folders, by_folder, spent),
        sums_table(
            "Slowest files to compile", ["File"], "Actions", files, by_file[:top]
        ),
        sums_table("Slowest tests", ["Test"], "Runs", runs, by_test[:top]),
    ]
    return "\n".join(tables)


def read_arguments():
    """Returns the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("profile", help="profile of a build, plain or gzip")
    add("after", nargs="?", help="profile of a later build, to compare with the first")
    add(
        "--events",
        action="append",
        metavar="FILE",
        help="build events of a profile; give it once per profile",
    )
    add(
        "--cores",
        type=int,
        default=os.cpu_count(),
        help="number of cores of the machine (default: %(default)s)",
    )
    add(
        "--top",
        type=int,
        default=20,
        help="number of files and of tests to list (default: %(default)s)",
    )
    arguments = parser.parse_args()
    paths = [path for path in (arguments.profile, arguments.after) if path is not None]
    arguments.profiles = paths
    arguments.events = arguments.events or [None] * len(paths)
    if len(arguments.events) != len(paths):
        parser.error("give --events once per profile, in the same order, or not at all")
    if arguments.cores < 1 or arguments.top < 0:
        parser.error("--cores must be at least 1 and --top at least 0")
    return arguments


def main():
    arguments = read_arguments()
    try:
        profiles = [
            load(path, parse_profile, "a Bazel profile", "profile")
            for path in arguments.profiles
        ]
        tests = [read_tests(*pair) for pair in zip(arguments.events, profiles)]
    except InputError as error:
        print(f"build_times: {error}", file=sys.stderr)
        return 2
    print(report(profiles, tests, arguments.cores, arguments.top), end="")
    for path, profile in zip(arguments.profiles, profiles):
        if profile.merged:
            seconds = f"{profile.merged_seconds:.1f} s"
            print(
                f"\n{path} lacks {profile.merged} short events ({seconds}), some of "
                "them actions. Pass --noslim_profile to Bazel to keep them."
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
