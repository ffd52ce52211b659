"""The commands of the engines' processes: workers with their arguments and environment."""

import os
import pathlib
import subprocess
import sys

import entries

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


def export(model, flags, peers, say):
    """Exports a model with the Python of the peers, and returns the path of the file.

    `say`: called with a text for people.
    """
    name, *sizes = entries.MODELS[model].export
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
    of_model = entries.MODELS[model]
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
    entry = entries.ENGINES[engine]
    words = [*entry.flags, *model_words(model, flags)]
    words.append(f"--devices={','.join(flags.devices)}")
    if flags.amp:
        words.append(f"--amp={flags.amp}")
    words.append(f"--microbatches={entry.microbatches or flags.microbatches}")
    if entry.stages_per_rank == 2:
        words.append(f"--balance={entries.MODELS[model].four_stages}")
    if entry.planned:
        words.append(f"--plan={flags.plans[model]}")
    environ = {"OMP_NUM_THREADS": str(entry.threads)}
    if flags.exact_memory:
        environ.update(EXACT_MEMORY)
    libraries = []
    if flags.on_gpus and entries.has_processes(engine):
        environ.update(NCCL_OUTPUT)
        if len(set(flags.devices)) < len(entries.balance_of(model, flags.sizes).split(",")):
            environ.update(SHARED_GPU)
        if flags.nccl:
            libraries.append(flags.nccl)
        if flags.transfers and entries.is_ours(engine):
            words.append(f"--transfers={flags.transfers}")
    if not entries.is_ours(engine):
        environ.update(peers.environ, PYTHONDONTWRITEBYTECODE="1")
        if flags.preload:
            libraries.append(flags.preload)
    if libraries:
        environ["LD_PRELOAD"] = ":".join(map(str, libraries))
    if entries.is_ours(engine):
        return [str(flags.worker), *words], environ
    return [peers.python, str(PEERS / "worker.py"), *words], environ
