"""Runs an engine: a training step for every line "step" on its input.

    > (start)    READY <parameters> <layers> <version of torch>
    > step       <seconds> <CPU seconds of all threads and ranks> <loss>
    > peak       <MiB that the process grew by, at most, since its first step>,
                 or on GPUs: <peak MiB allocated> <peak MiB reserved>

It exits at the end of its input. //benchmarks/peers:worker has the same protocol. It
needs PyTorch (2.15 was used) and, for their engines, torchgpipe or fairscale.
"""

import argparse
import os
import sys

import torch

import engines
import meter
import models

PLAIN = ["sequential", "accumulation", "checkpoint"]


class Worker:
    """An engine that runs in this process alone."""

    def __init__(self, flags):
        torch.set_num_threads(flags.threads)
        self.devices = flags.devices
        subject, self.work = engines.ENGINES[flags.engine](flags)
        self.parameters, self.depth = subject.parameters(), len(subject.layers)
        self.memory = None  # from the end of the first step on

    def step(self):
        watch = meter.Stopwatch(self.devices)
        loss = self.work()
        times = watch.elapsed()
        self.memory = self.memory or meter.memory_of(self.devices)
        return [*times, loss]

    def peak(self):
        return self.memory.peak()

    def close(self):
        pass


def make_worker(flags):
    if flags.exported and (flags.engine not in engines.PIPELINING or flags.checkpoint != "never"):
        sys.exit(
            "worker.py: --exported runs with pipelining-gpipe/never and "
            "pipelining-1f1b/never only"
        )
    if flags.engine in engines.PIPELINING:
        import stages  # only here, so that other engines do not load it

        return stages.make(flags)
    if flags.engine == "ddp":
        import ranks

        return ranks.replicas_of(flags)
    return Worker(flags)


def read_flags():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=[*engines.ENGINES, *engines.PIPELINING, "ddp"])
    parser.add_argument("--model", choices=[*models.MAKERS, "exported"])
    parser.add_argument("--exported", help="a file of torch.export.save, for exported")
    parser.add_argument(
        "--cut", default="", help="the modules of the file at which stages begin: a.4,a.8"
    )
    parser.add_argument(
        "--lora_rank",
        type=int,
        default=0,
        help="with --exported: train only adapters of this rank (needs peft)",
    )
    parser.add_argument(
        "--lora_targets", default="", help="the modules with adapters: q_proj,v_proj"
    )
    parser.add_argument("--batch", type=int, help="rows per mini-batch")
    parser.add_argument("--depth", type=int, default=0, help="levels, cells, blocks")
    parser.add_argument("--width", type=int, default=0, help="channels, features")
    parser.add_argument("--side", type=int, default=0, help="pixels, tokens")
    parser.add_argument(
        "--balance", default="", help="layers per partition: 3,4; not for plain models"
    )
    parser.add_argument(
        "--devices",
        default="cpu",
        help="a device per partition, or per process of pipelining-... and ddp: cuda:0,cuda:0. "
        "A single one is that of all",
    )
    parser.add_argument(
        "--amp", choices=["", "bfloat16", "float16"], default="", help="autocast's dtype"
    )
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument(
        "--checkpoint", choices=["always", "except_last", "never"], default="never"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="intra-op threads of the plain model"
    )
    parser.add_argument(
        "--learning_rate", type=float, default=0.01, help="0: no optimizer"
    )
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    flags.cut = [module for module in flags.cut.split(",") if module]
    flags.lora_targets = [target for target in flags.lora_targets.split(",") if target]
    flags.balance = [int(layers) for layers in flags.balance.split(",") if layers]
    pipelined = flags.engine not in [*PLAIN, "ddp"]
    if pipelined and not flags.balance:
        parser.error(f"--engine={flags.engine} needs --balance")
    parts = places_of(flags.engine, flags.balance)
    try:
        flags.devices = devices_of(flags.devices, parts)
    except (RuntimeError, ValueError) as error:
        parser.error(f"--devices={flags.devices}: {error}")
    return flags


def places_of(engine, balance):
    """Returns the number of devices that an engine uses."""
    if engine in PLAIN:
        return 1
    if engine == "ddp":
        return 2  # replicas
    return len(balance) // engines.PIPELINING.get(engine, 1)


def devices_of(text, parts):
    """Returns the devices of `parts` partitions or processes.

    Raises ValueError if `text` does not list one, or one for each. Plain models
    (`parts` 1) use the first.
    """
    devices = [torch.device(name) for name in text.split(",")]
    devices = [
        torch.device(each.type, each.index or 0) if each.type != "cpu" else each
        for each in devices
    ]
    if any(each.type not in ("cpu", "cuda") for each in devices):
        raise ValueError("only cpu and cuda can be measured")
    if len({each.type for each in devices}) > 1:
        raise ValueError("all devices must have one type")
    if len(devices) == 1:
        return devices * parts
    if parts > 1 and len(devices) != parts:
        raise ValueError(f"{len(devices)} devices for {parts} partitions or processes")
    return devices[:parts]


def main():
    # Answers go to a copy of stdout; stdout itself becomes stderr, so that a print() of
    # a library does not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = make_worker(read_flags())
    print("READY", worker.parameters, worker.depth, torch.__version__, file=answers)
    for line in sys.stdin:
        if line.strip() == "step":
            print(*worker.step(), file=answers)
        elif line.strip() == "peak":
            print(*worker.peak(), file=answers)
        else:
            sys.exit(f"worker.py: expected 'step' or 'peak', but got: {line!r}")
    worker.close()
    # Skips destructors: that of fairscale's Pipe waits for threads that have ended.
    os._exit(0)


if __name__ == "__main__":
    main()
