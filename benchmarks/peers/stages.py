"""The engines of torch.distributed.pipelining: a process per stage, over gloo.

torch.distributed.pipelining has no skip tensors. So a stage receives the skip tensors
that it or later stages need as further inputs, and returns those for later stages as
further outputs. It has no checkpointing either: "always" recomputes a stage with
torch.utils.checkpoint.
"""

import gc
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

import engines
import exported_model
import meter
import models
import plain_skips

SCHEDULES = {"pipelining-gpipe": ScheduleGPipe, "pipelining-1f1b": Schedule1F1B}
STOP, STEP, PEAK = range(3)


def keys_of(layers, kind):
    return [
        key
        for layer in layers
        if isinstance(layer, plain_skips.Skippable)
        for key in layer.keys(kind)
    ]


class Stage(nn.Module):
    """A stage: the layers `begin` to `end` (exclusive) of `layers`."""

    def __init__(self, layers, begin, end, recomputes):
        super().__init__()
        self.layers = nn.Sequential(*layers[begin:end])
        self.recomputes = recomputes
        # The keys of the skip tensors that cross the cut, in the order of the layers
        # that stash them.
        self.incoming = self._crossing(layers, begin)
        self.outgoing = self._crossing(layers, end)

    @staticmethod
    def _crossing(layers, cut):
        popped = keys_of(layers[cut:], "pop")
        return [key for key in keys_of(layers[:cut], "stash") if key in popped]

    def forward(self, *tensors):
        # PyTorch 2.15 refuses to send a gradient that is not contiguous. The gradient
        # of a skip tensor is a slice.
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(torch.Tensor.contiguous)
        if self.recomputes:
            return checkpoint(self.run, *tensors, use_reentrant=False)
        return self.run(*tensors)

    def run(self, *tensors):
        own = len(tensors) - len(self.incoming)
        plain_skips.store.update(zip(self.incoming, tensors[own:]))
        output = self.layers(tensors[0] if own == 1 else tensors[:own])
        skips = tuple(plain_skips.store.pop(key) for key in self.outgoing)
        if not skips:
            return output
        return (output if isinstance(output, tuple) else (output,)) + skips


class Rank:
    """One process. All ranks must call the same methods in the same order."""

    def __init__(self, rank, flags, port):
        world = len(flags.balance)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world)
        if flags.exported:
            subject = exported_model.ExportedModel(
                flags.exported, flags.batch, flags.side, flags.seed
            )
            stage = subject.stage(rank, flags.cut, flags.microbatches)
            self.module, self.depth = stage.submod, flags.depth
        else:
            subject = models.Subject(flags.model, flags, flags.seed, plain_skips)
            self.depth = len(subject.layers)
            begin = sum(flags.balance[:rank])
            end = begin + flags.balance[rank]
            recomputes = flags.checkpoint == "always"
            self.module = Stage(subject.layers, begin, end, recomputes)
            stage = PipelineStage(self.module, rank, world, torch.device("cpu"))
        self.parameters = subject.parameters()
        self.schedule = SCHEDULES[flags.engine](
            stage, flags.microbatches, loss_fn=subject.loss
        )
        self.data = [subject.input] if rank == 0 else []
        self.last = rank == world - 1
        self.target = {"target": subject.target} if self.last else {}
        self.mine = list(self.module.parameters())
        self.optimizer = engines.optimizer_of(self.mine, flags)
        del subject, stage
        gc.collect()  # frees the program and the modules of other stages
        self.memory = None  # from the end of the first step on

    def step(self):
        """Runs a step. Returns wall seconds, CPU seconds of all ranks, and the loss."""
        watch = meter.Stopwatch()
        losses = []
        self.schedule.step(*self.data, **self.target, losses=losses)
        engines.learn(self.mine, self.optimizer)
        dist.barrier()
        wall, cpu = watch.elapsed()
        self.memory = self.memory or meter.Memory()
        loss = torch.stack(losses).mean().item() if losses else 0.0
        return [wall, *self._sum(cpu, loss)]

    def peak(self):
        """Returns the sum of the peak memory of all ranks, in MiB."""
        return self._sum(self.memory.peak())[0]

    def command(self, code=STOP):
        """Sends `code` on rank 0; the other ranks ignore it. Returns rank 0's code."""
        code = torch.tensor([code])
        dist.broadcast(code, 0)
        return code.item()

    @staticmethod
    def _sum(*numbers):
        numbers = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()


def follow(rank, flags, port):
    """Runs a process that is not rank 0: follows rank 0 until it stops."""
    torch.set_num_threads(1)
    me = Rank(rank, flags, port)
    while (code := me.command()) != STOP:
        me.step() if code == STEP else me.peak()
    dist.destroy_process_group()


class Ranks:
    """All ranks, controlled by the process that is rank 0."""

    def __init__(self, flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.others = [
            multiprocessing.get_context("spawn").Process(
                target=follow, args=(rank, flags, port), daemon=True
            )
            for rank in range(1, len(flags.balance))
        ]
        for other in self.others:
            other.start()
        self.me = Rank(0, flags, port)
        self.parameters, self.depth = self.me.parameters, self.me.depth

    def step(self):
        self.me.command(STEP)
        return self.me.step()

    def peak(self):
        self.me.command(PEAK)
        return self.me.peak()

    def close(self):
        self.me.command(STOP)
        for other in self.others:
            other.join()
