"""Reports of the comparison: results as rows, and rows as text."""

import csv
import io
import json
import os
import pathlib
import platform
import statistics
import subprocess
import time

TIMES = ["ms", "least ms", "CPU ms", "by ours"]
MEMORY = ["peak MiB", "peak by ours"]
# On GPUs: the peak is that of allocated bytes.
GPU = ["ms", "least ms", "samples/s", "CPU ms", "by ours"] + MEMORY + ["reserved MiB", "first loss"]


def rows_of(model, results, against, batch, together=True):
    """Returns a row, a dictionary, for each engine.

    The row of an engine that failed has an "error" and no figures. The ratio "by ours"
    is the median over rounds of the ratios within a round, or the ratio of the medians if
    the engines have no rounds in common.

    `results`: engine to contest.Result.
    `against`: engine to our engine that it is compared with.
    `batch`: rows per mini-batch.
    `together`: whether the engines take turns within a round.
    """
    rows = []
    for engine, result in results.items():
        row = {"model": model, "engine": engine}
        rows.append(row)
        if result.error:
            row["error"] = result.error
            continue
        row["ms"] = 1e3 * statistics.median(result.seconds)
        row["least ms"] = 1e3 * min(result.seconds)
        row["CPU ms"] = 1e3 * statistics.median(result.cpu_seconds)
        row["samples/s"] = 1e3 * batch / row["ms"]
        row["peak MiB"] = result.peak_mib
        row["first loss"] = result.losses[0]
        if result.reserved_mib is not None:
            row["reserved MiB"] = result.reserved_mib
        ours = results[against[engine]]
        if not ours.error:
            pairs = zip(result.seconds, ours.seconds)
            if not together:
                pairs = [map(statistics.median, (result.seconds, ours.seconds))]
            row["by ours"] = statistics.median(theirs / mine for theirs, mine in pairs)
            row["peak by ours"] = result.peak_mib / ours.peak_mib
    return rows


def _text(row, column):
    cell = row.get(column, "-")
    if isinstance(cell, str):
        return cell.replace("|", "\\|")
    if column == "first loss":
        return f"{cell:.6g}"
    return f"{cell:.2f}" if column.endswith("by ours") else f"{cell:.0f}"


def to_markdown(rows, columns, environment):
    """Returns a table in Markdown, with the environment in the lines below it."""
    columns = ["model", "engine", *columns]
    failed = any("error" in row for row in rows)
    if failed:
        columns.append("error")
    rule = ["---", "---"] + ["---:"] * (len(columns) - 2)
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, rule)]
    for row in rows:
        lines.append(f"| {' | '.join(_text(row, column) for column in columns)} |")
    lines.append("")
    lines += [f"    {name}: {value}" for name, value in environment.items()]
    return "\n".join(lines) + "\n"


def to_csv(rows, columns, _):
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        ["model", "engine", *columns, "error"],
        extrasaction="ignore",
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(rows, columns, environment):
    """Returns Google Benchmark's format: an entry for the median of each row."""
    entries = []
    for row in rows:
        name = f"{row['model']}/{row['engine']}"
        entry = {"name": name, "run_name": name, "run_type": "iteration"}
        entry.update(repetitions=1, iterations=1, threads=1, time_unit="ms")
        if "error" in row:
            # compare.py reads the times of failed entries, too.
            entry.update(real_time=0.0, cpu_time=0.0)
            entry.update(error_occurred=True, error_message=row["error"])
        else:
            entry.update(real_time=row["ms"], cpu_time=row["CPU ms"])
            entry.update({c.replace(" ", "_"): row[c] for c in columns if c in row})
        entries.append(entry)
    return json.dumps({"context": environment, "benchmarks": entries}, indent=2) + "\n"


FORMATS = {"markdown": to_markdown, "csv": to_csv, "json": to_json}


def check_writable(path):
    """Raises OSError if `path` (pathlib.Path) cannot be written. Does not change it."""
    if path.is_fifo():
        return  # opening a FIFO would block until it has a reader
    existed = path.exists()
    with path.open("a", encoding="utf-8"):
        pass
    if not existed:
        path.resolve().unlink()


def split_page(page, mark):
    """Returns the texts before and after the table of `page`, a pathlib.Path.

    The first text ends with the line "<!-- `mark`: begin -->", the second one begins
    with "<!-- `mark`: end -->". Raises RuntimeError if these lines are missing.
    """
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise RuntimeError(f"no lines {begin.strip()!r} and {end!r} in it")
    return before + begin, end + after


def put_into_page(page, mark, text):
    """Replaces the table of `page` by `text`; see split_page()."""
    before, after = split_page(page, mark)
    page.write_text(before + text + after, encoding="utf-8")


def environment_of(rounds, seed, devices):
    """Returns names and values of the environment. None names the host or the user."""
    return {
        **_gpus(devices),
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before": f"{busy_cores():.1f} cores",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "rounds": str(rounds),
        "seed": str(seed),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _gpus(devices):
    """Returns the devices and the GPUs of the machine with their driver."""
    if devices[0] == "cpu":
        return {}
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        told = ""
    names = "; ".join(told.strip().splitlines()) or "nvidia-smi gives no name"
    return {"devices": ", ".join(devices), "gpus and drivers": names}


def _commit():
    """Returns the commit, with a + if there are changes; "" without git, and where these
    files are not in a checkout, since another repository may be around them."""
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    if not (root / ".git").exists():
        return ""
    try:
        told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return told.stdout.strip()


def _cpu():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def busy_cores():
    """Returns the number of busy cores while this program sleeps for a second."""

    def busy():
        with open("/proc/stat", encoding="ascii") as lines:
            user, nice, system = map(int, lines.readline().split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")

    start = busy()
    time.sleep(1)
    return busy() - start
