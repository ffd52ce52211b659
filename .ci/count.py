"""Counts test cases from Bazel's build events.

    count.py EVENTS BAZEL_STATUS [NAME=STATUS...]

Prints what failed and, as the last line, `N passed, N failed`; exits with 1 if
anything failed. A target that failed as a whole (it does not compile, it ran
out of time) counts as one, and so does each NAME, a check outside of //... with its
exit status; one that Bazel skips, since it is not for this machine, as none.
"""

import json
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree


def cases(uri):
    """(names passed, names failed) of a test.xml; skipped ones are neither."""
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
    try:
        with open(events, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
    except OSError:
        lines = []
    for event in lines:
        identity = event["id"]
        if "targetConfigured" in identity and "configured" in event:
            if event["configured"].get("targetKind", "").endswith("_test rule"):
                wanted.add(identity["targetConfigured"]["label"])
        elif event.get("aborted", {}).get("reason") == "SKIPPED":
            # A variant for devices that this build has not (see
            # gpipe_device_test).
            skipped.add(identity.get("targetCompleted", {}).get("label"))
        elif "testSummary" in identity and "testSummary" in event:
            label = identity["testSummary"]["label"]
            outcome[label] = event["testSummary"]["overallStatus"]
        elif "testResult" in identity and "testResult" in event:
            # One per run and shard; of several attempts the last counts.
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
            # A test that writes no report of cases is one case.
            good = good or [label]
        passed += len(good)

    for other in others:
        name, _, other_status = other.rpartition("=")
        if int(other_status) == 0:
            passed += 1
        else:
            failed.append(name)
    # Bazel can fail without a test that fails: a broken BUILD file, no test at
    # all. That must not look like success.
    if int(bazel_status) != 0 and not any(name.startswith("//") for name in failed):
        failed.append(f"bazel test //... ended with status {bazel_status}")

    for name in failed:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
