"""The options of tools/compare_peers."""

import argparse
import math
import pathlib
import re
import shutil

import entries
import installation
import report

USAGE = 1  # the exit code for a wrong flag
SIZES = {
    "batch": "rows per mini-batch",
    "depth": "levels, cells, blocks or layers",
    "width": "channels or features",
    "side": "pixels per side, or tokens",
}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(USAGE, f"compare_peers: {message}; see --help\n")


def read_flags(description, arguments=None):
    """Returns the flags. Exits with USAGE if they are wrong."""
    parser = Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", default=",".join(entries.DEFAULT_MODELS), help="default: %(default)s")
    add(
        "--engines",
        default="default",
        help="a list of " + ", ".join(entries.ENGINES) + "; the part before the / means "
        "all modes, 'default' those of the published table, 'all' all engines. "
        "The gpipe engines that they are compared with are added",
    )
    add("--rounds", type=int, default=9, help="measured rounds; default: %(default)s")
    add("--warm_up", type=int, default=2, help="rounds before measuring; default: %(default)s")
    add("--microbatches", type=int, default=4, help="default: %(default)s")
    add(
        "--plan_microbatches",
        default="4",
        help="numbers of micro-batches from which processes-plan/never chooses; "
        "default: %(default)s",
    )
    for size, meaning in SIZES.items():
        add(f"--{size}", type=int, help=f"{meaning}, instead of each model's own")
    add("--balance", help="layers per partition, instead of each model's own: 185,185")
    add(
        "--devices",
        default="cpu",
        help="a device per partition, or one for all: cuda:0,cuda:0. On GPUs, times are "
        "those of events, and peaks those of the allocators; default: %(default)s",
    )
    add("--amp", choices=["bfloat16", "float16"], help="run under autocast with this dtype")
    add(
        "--transfers",
        choices=["auto", "host", "direct"],
        help="the transport between GPUs of our engines with several processes",
    )
    add(
        "--nccl",
        type=pathlib.Path,
        help="a libnccl.so.2 that processes load which send tensors from GPU to GPU. Two "
        "of them on one GPU need NCCL 2.31 or newer",
    )
    add(
        "--one_at_a_time",
        action="store_true",
        help="run all rounds of an engine before the next engine starts. Use it if the "
        "models of all engines do not fit into the memory together",
    )
    add(
        "--seconds",
        type=float,
        default=math.inf,
        help="measure an engine in no further round after this time",
    )
    add("--against", help="our engine that all are compared with; default: per engine")
    add("--seed", type=int, default=0, help="the seed for weights and data")
    add(
        "--venv",
        type=pathlib.Path,
        default=installation.default_folder(),
        help="the folder for the peers; default: %(default)s",
    )
    add("--python", help="a Python with torch, instead of a new environment")
    add("--worker", help="gpipe's program, instead of building it with ./bazelw")
    add("--format", choices=list(report.FORMATS), default="markdown")
    add("--output", type=pathlib.Path, help="a file, instead of stdout")
    add(
        "--preload",
        type=pathlib.Path,
        help="a library that the peers' processes load first, such as our programs' "
        "allocator, libtcmalloc_minimal.so.4",
    )
    add(
        "--exact_memory",
        action="store_true",
        help="make malloc return freed tensors to the system at once, in all processes. "
        "Peaks then contain only what engines hold, not what malloc caches. Do not use "
        "it for times, since steps take longer",
    )
    add(
        "--page",
        type=pathlib.Path,
        help="a page (docs/results/peers.md) in which to replace the table of this kind",
    )
    flags = parser.parse_args(arguments)
    engines = flags.engines.split(",")
    if flags.against:
        if flags.against not in entries.ENGINES or not entries.is_ours(flags.against):
            parser.error(f"--against={flags.against} is none of our engines")
        engines.append(flags.against)
    try:
        flags.engines = entries.select_engines(engines, flags.against)
    except ValueError as error:
        parser.error(str(error))
    flags.models = flags.models.split(",")
    for model in flags.models:
        if model not in entries.MODELS:
            parser.error(f"there is no model {model!r}; use one of {', '.join(entries.MODELS)}")
    if flags.rounds < 1 or flags.warm_up < 1 or flags.microbatches < 1:
        parser.error("--rounds, --warm_up and --microbatches need to be above 0")
    if not flags.seconds > 0:  # also if it is not a number
        parser.error("--seconds needs to be above 0")
    check_devices(flags, parser)
    for flag in ("python", "worker"):
        program = getattr(flags, flag)
        if program and not shutil.which(program):
            parser.error(f"--{flag}={program}: no program is there")
    for flag in ("preload", "nccl"):
        library = getattr(flags, flag)
        if not library:
            continue
        if not library.is_file():
            parser.error(f"--{flag}={library}: no file is there")
        setattr(flags, flag, library.resolve())
    check_files(flags, parser)
    return flags


def check_devices(flags, parser):
    """Makes lists of --devices and --sizes, and checks them and what goes with them."""
    flags.devices = flags.devices.split(",")
    if "cuda" in flags.devices and len(set(flags.devices)) > 1:
        parser.error("--devices: give each GPU its index, as in cuda:0,cuda:1")
    for device in flags.devices:
        if not re.fullmatch("cpu|cuda|cuda:[0-9]+", device):
            parser.error(f"--devices: {device!r} is not cpu, cuda or cuda:INDEX")
    flags.on_gpus = flags.devices[0] != "cpu"
    if any((device != "cpu") != flags.on_gpus for device in flags.devices):
        parser.error("--devices: all devices must be of one type")
    if flags.balance and not all(part.isdigit() for part in flags.balance.split(",")):
        parser.error(f"--balance={flags.balance} is no list of numbers, such as 185,185")
    flags.sizes = [
        f"--{name}={getattr(flags, name)}"
        for name in (*SIZES, "balance")
        if getattr(flags, name) is not None
    ]
    for model in flags.models:
        partitions = len(entries.balance_of(model, flags.sizes).split(","))
        if len(flags.devices) not in (1, partitions):
            parser.error(
                f"--devices lists {len(flags.devices)} devices, but {model} has "
                f"{partitions} partitions; list one per partition, or one for all"
            )
    for engine in flags.engines:
        if flags.balance and entries.ENGINES[engine].stages_per_rank > 1:
            parser.error(f"--balance is not for {engine}, which has two stages per process")
        if (flags.on_gpus or flags.balance or flags.amp) and entries.ENGINES[engine].planned:
            parser.error(f"{engine} runs on the CPU only, without --balance and --amp")
    if flags.on_gpus or flags.balance or flags.amp:
        for model in flags.models:
            if entries.MODELS[model].export:
                parser.error(f"{model} runs on the CPU only, without --balance and --amp")


def check_files(flags, parser):
    """Checks the output files before the work, whose results would be lost."""
    for flag in ("output", "page"):
        path = getattr(flags, flag)
        if not path:
            continue
        try:
            if flag == "page":
                report.split_page(path, mark_of(flags))
            report.check_writable(path)
        except OSError as error:
            parser.error(f"--{flag}={path}: {error.strerror}")
        except (RuntimeError, UnicodeDecodeError) as error:
            parser.error(f"--{flag}={path}: {error}")


def mark_of(flags):
    """Returns the name of a page's table for this kind of run."""
    if flags.against:
        return "planned"
    if all(entries.ENGINES[engine].split == "replicas" for engine in flags.engines):
        return "replicas"
    if flags.on_gpus:
        return "gpu"
    return "exact memory" if flags.exact_memory else "times"
