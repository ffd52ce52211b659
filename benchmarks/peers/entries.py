"""The entries of the comparison: models with their sizes, engines with their modes, and
the commands of their processes: workers with their arguments and environment."""

import dataclasses
import os
import pathlib
import subprocess
import sys

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent.parent

# With these the allocators keep next to nothing that is freed: that of glibc, and TCMalloc,
# which our programs have.
EXACT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "TCMALLOC_AGGRESSIVE_DECOMMIT": "1",
    "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES": "524288",
}

# NCCL 2.31 lets several ranks use one GPU with these.
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}

# NCCL prints to stdout otherwise, where workers give their answers.
NCCL_OUTPUT = {"NCCL_DEBUG_FILE": "/dev/stderr"}


@dataclasses.dataclass(frozen=True)
class Model:
    flags: tuple  # sizes and balance, the same for every worker
    # The allowed relative difference between first losses. They differ only by the
    # order of sums, and by the masks of dropout, which each engine draws differently.
    tolerance: float = 1e-4
    subject: str = None  # the name in models.py and peer_model.cc, if different
    default: bool = True  # takes part by default
    # Layers of four stages, for engines with two stages per rank, cut in the same way.
    four_stages: str = None
    # The model of tools/export_examples.py and its flags. The file is exported with
    # them, and runs with the engines that cut exported programs.
    export: tuple = ()


def _llama(*flags):
    """Returns an exported Llama, cut in the middle of its layers.

    Only pipelining-.../never and our engines cut such a file. --depth is what workers
    report as their layers.
    """
    size = ("--batch=16", "--side=64", "--depth=8", "--balance=4,4")
    file = ("--batch=16", "--tokens=64", "--layers=8", "--width=256", "--heads=8")
    return Model(
        (*size, "--cut=model.model.layers.4", *flags),
        subject="exported",
        default=False,
        export=("llama", *file, "--vocabulary=1024"),
    )


# Cut into two partitions by //tools:plan on 2 cores.
MODELS = {
    "resnet101": Model(("--batch=8", "--side=48", "--balance=294,76")),
    "unet": Model(
        ("--batch=16", "--side=64", "--depth=5", "--width=16", "--balance=54,55"),
        tolerance=0.05,
        four_stages="25,26,30,28",
    ),
    "amoebanetd": Model(
        ("--batch=16", "--side=64", "--depth=6", "--width=64", "--balance=7,5")
    ),
    "mlp": Model(
        ("--batch=512", "--depth=32", "--width=512", "--balance=32,32"),
        four_stages="16,16,16,16",
    ),
    "transformer": Model(
        ("--batch=16", "--side=64", "--depth=8", "--width=256", "--balance=8,8"),
        four_stages="4,4,4,4",
    ),
    # Has almost no work, so that its time is the cost of the engines.
    "tiny": Model(
        ("--batch=64", "--depth=8", "--width=64", "--balance=8,8"),
        subject="mlp",
        default=False,
    ),
    "llama": _llama(),
    # Trains adapters alone: those of PEFT in Python, of models/lora.h in C++.
    "llama-lora": _llama("--lora_rank=8", "--lora_targets=q_proj,v_proj"),
}

DEFAULT_MODELS = [name for name, model in MODELS.items() if model.default]


@dataclasses.dataclass(frozen=True)
class Engine:
    flags: tuple
    against: str  # our engine that it is compared with
    threads: int = 1  # intra-op threads of each worker, process or plain model
    # The parts of the mini-batch that are computed on their own: micro-batches, replicas
    # or the whole one. BatchNorm has other statistics in each, so losses differ.
    split: str = "micro-batches"
    default: bool = True  # takes part by default
    stages_per_rank: int = 1
    microbatches: int = None  # instead of those of the run
    planned: bool = False  # takes cut, micro-batches and schedule from a plan


def _engines():
    plain = {"against": "gpipe/never", "split": "whole"}
    entries = {
        "sequential": Engine(("--engine=sequential",), **plain),
        "sequential/2-threads": Engine(
            ("--engine=sequential", "--threads=2"), threads=2, **plain
        ),
        "accumulation": Engine(
            ("--engine=accumulation",), against="gpipe/never", default=False
        ),
        # Plain accumulation with torch.utils.checkpoint around the model.
        "checkpoint": Engine(
            ("--engine=checkpoint",), against="gpipe/always", default=False
        ),
    }

    def add(name, mode, against, default=True, stages_per_rank=1):
        entries[f"{name}/{mode}"] = Engine(
            (f"--engine={name}", f"--checkpoint={mode}"),
            against=f"{against}/{mode}",
            default=default,
            stages_per_rank=stages_per_rank,
        )

    modes = ["never", "except_last", "always"]
    for name in ["gpipe", "torchgpipe", "fairscale"]:
        for mode in modes:
            add(name, mode, "gpipe")
    add("1f1b", "never", "1f1b")
    add("1f1b", "except_last", "1f1b", default=False)
    add("1f1b", "always", "1f1b")
    # Our engines with a process per partition, as in torch.distributed.pipelining.
    for schedule, against in [("fill-drain", "gpipe"), ("1f1b", "1f1b")]:
        for mode in ["never", "always"]:
            entries[f"processes-{schedule}/{mode}"] = Engine(
                (f"--engine={schedule}", f"--checkpoint={mode}", "--processes"),
                against=f"{against}/{mode}",
                default=False,
            )
    # The choice of our plan(), in one process, and with a process per partition.
    for name, flags in [("threads", ()), ("processes", ("--processes",))]:
        entries[f"{name}-plan/never"] = Engine(
            flags, against="processes-plan/never", default=False, planned=True
        )
    # Two replicas of the whole model, each with half of the mini-batch.
    replicas = {"against": "replicas", "default": False, "microbatches": 1, "split": "replicas"}
    entries["replicas"] = Engine(
        ("--engine=fill-drain", "--replicas=2", "--processes"), **replicas
    )
    entries["ddp"] = Engine(("--engine=ddp",), **replicas)
    for name, stages_per_rank in [("zb", 1), ("interleaved1f1b", 2), ("zb2", 2), ("zbv", 2)]:
        add(f"pipelining-{name}", "never", "processes-plan", False, stages_per_rank)
    for name, against in [("pipelining-gpipe", "gpipe"), ("pipelining-1f1b", "1f1b")]:
        add(name, "never", against)
        add(name, "always", against, default=False)
    # With twice as many micro-batches as the others have by default.
    for name in [name for name in entries if name.startswith("pipelining-")]:
        if name.endswith("/never"):
            entries[f"{name}-8"] = dataclasses.replace(
                entries[name], against="processes-plan/never", default=False, microbatches=8
            )
    return entries


OURS = [
    *("gpipe", "1f1b", "processes-fill-drain", "processes-1f1b"),
    *("threads-plan", "processes-plan", "replicas"),
]
ENGINES = _engines()


def fits(engine, model):
    """Returns whether there is a cut of the model for the engine."""
    return ENGINES[engine].stages_per_rank == 1 or MODELS[model].four_stages is not None


def size_of(name, model, sizes):
    """Returns the value of the flag `name` of a model. `sizes`: flags that replace its own."""
    values = [
        word.split("=")[1]
        for word in (*MODELS[model].flags, *sizes)
        if word.startswith(f"--{name}=")
    ]
    return values[-1]


def balance_of(model, sizes):
    return size_of("balance", model, sizes)


def has_processes(name):
    """Returns whether an engine has a process per partition."""
    return name.startswith(("pipelining-", "processes-", "replicas", "ddp"))


def is_ours(name):
    return name.split("/")[0] in OURS


def select_engines(texts, against=None):
    """Returns the names of the selected engines, in the order of ENGINES.

    A text is the name of an engine, the first part of names if no engine has it
    ("torchgpipe" for all of "torchgpipe/..."), "default" or "all". Our engines that the selected ones are
    compared with are added: `against`, or for each engine its own. Raises ValueError if
    a text selects no engine.
    """
    chosen = set()
    for text in texts:
        found = {
            name
            for name, engine in ENGINES.items()
            if text == name
            or (text not in ENGINES and text in ("all", name.split("/")[0]))
            or (text == "default" and engine.default)
        }
        if not found:
            raise ValueError(f"no engine {text!r}; there are: {', '.join(ENGINES)}")
        chosen |= found | {against or ENGINES[name].against for name in found}
    return [name for name in ENGINES if name in chosen]


def export(model, flags, peers, say):
    """Exports a model with the Python of the peers, and returns the path of the file.

    `say`: called with a text for people.
    """
    name, *sizes = MODELS[model].export
    folder = flags.venv / "models"
    say(f"exporting {name}")
    command = [peers.python, str(ROOT / "tools" / "export_examples.py"), f"--out={folder}"]
    environ = {**os.environ, **peers.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command += [*sizes, f"--seed={flags.seed}", name]
    if subprocess.run(command, env=environ, stdout=sys.stderr, check=False).returncode:
        raise RuntimeError(f"the export failed, see above: {' '.join(command)}")
    return folder / f"{name}.pt2"


def model_words(model, flags):
    """Returns the arguments of workers that say which model they run."""
    of_model = MODELS[model]
    words = [f"--model={of_model.subject or model}", *of_model.flags, *flags.sizes]
    words.append(f"--seed={flags.seed}")
    if model in flags.exported:
        words.append(f"--exported={flags.exported[model]}")
    return words


def write_plan(model, flags, say):
    """Plans for processes-plan/never, and returns the path of the plan."""
    path = flags.venv / "plans" / f"{model}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"planning {model}")
    command = [str(flags.worker), *model_words(model, flags), f"--write_plan={path}"]
    command.append(f"--plan_microbatches={flags.plan_microbatches}")
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise RuntimeError(f"the plan failed, see above: {' '.join(command)}")
    return path


def command_of(engine, model, flags, peers):
    """Returns the arguments of a command and its environment variables."""
    entry = ENGINES[engine]
    words = [*entry.flags, *model_words(model, flags)]
    words.append(f"--devices={','.join(flags.devices)}")
    if flags.amp:
        words.append(f"--amp={flags.amp}")
    words.append(f"--microbatches={entry.microbatches or flags.microbatches}")
    if entry.stages_per_rank == 2:
        words.append(f"--balance={MODELS[model].four_stages}")
    if entry.planned:
        words.append(f"--plan={flags.plans[model]}")
    environ = {"OMP_NUM_THREADS": str(entry.threads)}
    if flags.exact_memory:
        environ.update(EXACT_MEMORY)
    libraries = []
    if flags.on_gpus and has_processes(engine):
        environ.update(NCCL_OUTPUT)
        if len(set(flags.devices)) < len(balance_of(model, flags.sizes).split(",")):
            environ.update(SHARED_GPU)
        if flags.nccl:
            libraries.append(flags.nccl)
        if flags.transfers and is_ours(engine):
            words.append(f"--transfers={flags.transfers}")
    if not is_ours(engine):
        environ.update(peers.environ, PYTHONDONTWRITEBYTECODE="1")
        if flags.preload:
            libraries.append(flags.preload)
    if libraries:
        environ["LD_PRELOAD"] = ":".join(map(str, libraries))
    if is_ours(engine):
        return [str(flags.worker), *words], environ
    return [peers.python, str(PEERS / "worker.py"), *words], environ
