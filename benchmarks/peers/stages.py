"""The engines of torch.distributed.pipelining: a process per rank.

Tensors of the CPU go over gloo, those of GPUs over NCCL. Two ranks may share a GPU with
NCCL 2.31 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1; tools/compare_peers sets it.

torch.distributed.pipelining has no skip tensors. So a stage receives the skip tensors
that it or later stages need as further inputs, and returns those for later stages as
further outputs. It has no checkpointing either: "always" recomputes a stage with
torch.utils.checkpoint.
"""

import gc

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.utils.checkpoint import checkpoint

import engines
import exported_model
import meter
import plain_skips

# The schedule, and the number of stages per rank.
SCHEDULES = {
    "pipelining-gpipe": (ScheduleGPipe, 1),
    "pipelining-1f1b": (Schedule1F1B, 1),
    "pipelining-interleaved1f1b": (ScheduleInterleaved1F1B, 2),
    "pipelining-zb": (ScheduleInterleavedZeroBubble, 1),
    "pipelining-zb2": (ScheduleInterleavedZeroBubble, 2),
    "pipelining-zbv": (ScheduleZBVZeroBubble, 2),
}
STOP, STEP, PEAK = range(3)


def ranks_of(flags):
    """Returns the number of processes."""
    return len(flags.balance) // SCHEDULES[flags.engine][1]


def stages_of(rank, flags):
    """Returns the stages of `rank`: every ranks-th one, or in a V there and back."""
    ranks, stages = ranks_of(flags), len(flags.balance)
    if SCHEDULES[flags.engine][0] is ScheduleZBVZeroBubble:
        return [rank, stages - 1 - rank]
    return list(range(rank, stages, ranks))


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

    def __init__(self, rank, flags, store):
        world = ranks_of(flags)
        torch.set_num_threads(1)
        self.device = flags.devices[rank]
        backend = "gloo"
        if self.device.type == "cuda":
            # Commands and sums are CPU tensors. So no rank waits on the GPU while
            # another engine runs its step.
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(self.device)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        mine = stages_of(rank, flags)
        if flags.exported:
            subject = exported_model.ExportedModel(
                flags.exported, flags.batch, flags.side, flags.seed
            )
            stages = [
                subject.stage(stage, flags.cut, flags.microbatches) for stage in mine
            ]
            self.depth = flags.depth
        else:
            subject = engines.subject_of(flags)
            self.depth = len(subject.layers)
            stages = [self._stage(subject, stage, flags) for stage in mine]
        subject.move_data(self.device, self.device)
        self.module = nn.ModuleList([stage.submod for stage in stages])
        self.parameters = subject.parameters()
        schedule, _ = SCHEDULES[flags.engine]
        single = schedule in (ScheduleGPipe, Schedule1F1B)
        self.schedule = schedule(
            stages[0] if single else stages, flags.microbatches, loss_fn=subject.loss
        )
        self.data = [subject.input] if 0 in mine else []
        self.last = len(flags.balance) - 1 in mine
        self.target = {"target": subject.target} if self.last else {}
        self.mine = list(self.module.parameters())
        self.optimizer = engines.optimizer_of(self.mine, flags)
        del subject, stages
        gc.collect()  # frees the program and the modules of other stages
        self.memory = None  # from the end of the first step on

    def _stage(self, subject, stage, flags):
        begin = sum(flags.balance[:stage])
        module = Stage(
            subject.layers,
            begin,
            begin + flags.balance[stage],
            recomputes=flags.checkpoint == "always",
        )
        module.to(self.device)
        return PipelineStage(module, stage, len(flags.balance), self.device)

    def step(self):
        """Runs a step. Returns seconds, CPU seconds of all ranks, and the loss."""
        watch = meter.Stopwatch([self.device])
        losses = []
        self.schedule.step(*self.data, **self.target, losses=losses)
        engines.learn(self.mine, self.optimizer)
        if self.device.type == "cpu":
            dist.barrier()  # the clock runs until all ranks have finished
        wall, cpu = watch.elapsed()
        self.memory = self.memory or meter.memory_of([self.device])
        loss = torch.stack(losses).mean().item() if losses else 0.0
        return [self._largest(wall), *self._sum(cpu, loss)]

    def peak(self):
        """Returns the sums of the peak memory of all ranks, in MiB."""
        return self._sum(*self.memory.peak())

    def command(self, code=STOP):
        """Sends `code` on rank 0; the other ranks ignore it. Returns rank 0's code."""
        code = torch.tensor([code])
        dist.broadcast(code, 0)
        return code.item()

    @staticmethod
    def _largest(number):
        number = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return number.item()

    @staticmethod
    def _sum(*numbers):
        numbers = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()


def follow(rank, flags, port):
    """Runs a process that is not rank 0: follows rank 0 until it stops."""
    torch.set_num_threads(1)
    me = Rank(rank, flags, dist.TCPStore("127.0.0.1", port, is_master=False))
    while (code := me.command()) != STOP:
        me.step() if code == STEP else me.peak()
    dist.destroy_process_group()


class Ranks:
    """All ranks, controlled by the process that is rank 0."""

    def __init__(self, flags):
        # The system chooses a port, as several engines start at the same time.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.others = [
            multiprocessing.get_context("spawn").Process(
                target=follow, args=(rank, flags, store.port), daemon=True
            )
            for rank in range(1, ranks_of(flags))
        ]
        for other in self.others:
            other.start()
        self.me = Rank(0, flags, store)
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
