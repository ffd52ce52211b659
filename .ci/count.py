"""Counts test cases from Bazel's build events.

    count.py EVENTS BAZEL_STATUS [NAME=STATUS...]

Prints the failures and, as the last line, `N passed, N failed`. Exits with 1 if
anything failed. A target that fails as a whole (a compile error or a timeout) counts
as one failure. Each NAME is a check outside of //... with its exit status, and counts as
one. A target that Bazel skips on this machine counts as none.
"""

import json
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree


def cases(uri):
    """Returns (names passed, names failed) of a test.xml, without skipped cases."""
    path = urllib.request.url2pathname(urllib.parse.urlparse(uri).path)
    passed, failed = [], []
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return passed, failed
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is None and case.get("status") != "notrun":
            passed.append(name)
    return passed, failed


def main():
    events, bazel_status, *others = sys.argv[1:]
    wanted, skipped, outcome, reports = set(), set(), {}, {}
    lines = []
    try:
        with open(events, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    lines.append(json.loads(line))
    except OSError:
        pass
    except json.JSONDecodeError:
        # Cut by the end of Bazel, whose status counts as a failure then.
        if int(bazel_status) == 0:
            raise
    for event in lines:
        identity = event["id"]
        if "targetConfigured" in identity and "configured" in event:
            if event["configured"].get("targetKind", "").endswith("_test rule"):
                wanted.add(identity["targetConfigured"]["label"])
        elif event.get("aborted", {}).get("reason") == "SKIPPED":
            # A variant for devices that this build does not support (see
            # gpipe_device_test).
            skipped.add(identity.get("targetCompleted", {}).get("label"))
        elif "testSummary" in identity and "testSummary" in event:
            label = identity["testSummary"]["label"]
            outcome[label] = event["testSummary"]["overallStatus"]
        elif "testResult" in identity and "testResult" in event:
            # One report per run and shard. The last attempt replaces earlier ones.
            result = identity["testResult"]
            key = (result["label"], result.get("run"), result.get("shard"))
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    reports[key] = output["uri"]

    passed, failed = 0, []
    for label in sorted((wanted - skipped) | set(outcome)):
        good, bad = [], []
        for key, uri in reports.items():
            if key[0] == label:
                more_good, more_bad = cases(uri)
                good += more_good
                bad += more_bad
        status = outcome.get(label, "not built")
        if status not in ("PASSED", "FLAKY"):
            failed += [f"{label} {name}" for name in bad] or [f"{label}: {status}"]
        else:
            # A test without a report of cases counts as one case.
            good = good or [label]
        passed += len(good)

    for other in others:
        name, _, other_status = other.rpartition("=")
        if int(other_status) == 0:
            passed += 1
        else:
            failed.append(name)
    # Bazel can fail without a failed test, for example because of a broken BUILD file.
    # That must count as a failure.
    if int(bazel_status) != 0 and not any(name.startswith("//") for name in failed):
        failed.append(f"bazel test //... ended with status {bazel_status}")

    for name in failed:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
