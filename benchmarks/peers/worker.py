"""Runs an engine: a training step for every line "step" on its input.

    > (start)    READY <parameters> <layers> <version of torch>
    > step       <seconds> <CPU seconds of all threads and ranks> <loss>
    > peak       <MiB that the process grew by, at most, since its first step>

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

PIPELINING = [
    "pipelining-gpipe",
    "pipelining-1f1b",
    "pipelining-interleaved1f1b",
    "pipelining-zb",
    "pipelining-zb2",
    "pipelining-zbv",
]


class Worker:
    """An engine that runs in this process alone."""

    def __init__(self, flags):
        torch.set_num_threads(flags.threads)
        subject, self.work = engines.ENGINES[flags.engine](flags)
        self.parameters, self.depth = subject.parameters(), len(subject.layers)
        self.memory = None  # from the end of the first step on

    def step(self):
        watch = meter.Stopwatch()
        loss = self.work()
        times = watch.elapsed()
        self.memory = self.memory or meter.Memory()
        return [*times, loss]

    def peak(self):
        return self.memory.peak()

    def close(self):
        pass


def make_worker(flags):
    if flags.exported and (flags.engine not in PIPELINING or flags.checkpoint != "never"):
        sys.exit(
            "worker.py: --exported runs with pipelining-gpipe/never and "
            "pipelining-1f1b/never only"
        )
    if flags.engine in PIPELINING:
        import stages  # only here, so that other engines do not load it

        return stages.Ranks(flags)
    return Worker(flags)


def read_flags():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=[*engines.ENGINES, *PIPELINING])
    parser.add_argument("--model", choices=[*models.MAKERS, "exported"])
    parser.add_argument("--exported", help="a file of torch.export.save, for exported")
    parser.add_argument(
        "--cut", default="", help="the modules of the file at which stages begin: a.4,a.8"
    )
    parser.add_argument("--batch", type=int, help="rows per mini-batch")
    parser.add_argument("--depth", type=int, default=0, help="levels, cells, blocks")
    parser.add_argument("--width", type=int, default=0, help="channels, features")
    parser.add_argument("--side", type=int, default=0, help="pixels, tokens")
    parser.add_argument("--balance", help="layers per partition: 3,4")
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
    flags.balance = [int(layers) for layers in flags.balance.split(",")]
    return flags


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
            print(worker.peak(), file=answers)
        else:
            sys.exit(f"worker.py: expected 'step' or 'peak', but got: {line!r}")
    worker.close()
    # Skips destructors: that of fairscale's Pipe waits for threads that have ended.
    os._exit(0)


if __name__ == "__main__":
    main()
