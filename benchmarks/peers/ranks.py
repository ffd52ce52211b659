"""Engines with a process per rank, which torch.distributed connects.

Tensors of the CPU go over gloo, those of GPUs over NCCL. Two ranks may share a GPU with
NCCL 2.31 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1; tools/compare_peers sets it.
"""

import gc

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import contest
import engines
import meter

STOP, STEP, PEAK = range(3)
REPLICAS = 2


class Rank:
    """One process. All ranks must call the same methods in the same order.

    A subclass makes its part of the model in prepare(), which sets `parameters` (of the
    whole model), `depth` (its layers) and `mine` (the parameters of this rank), and runs
    forward and backward in run().
    """

    def __init__(self, rank, world, flags, store):
        torch.set_num_threads(1)
        self.rank, self.world = rank, world
        self.device = flags.devices[rank]
        backend = "gloo"
        if self.device.type == "cuda":
            # Commands and sums are CPU tensors. So no rank waits on the GPU while
            # another engine runs its step.
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(self.device)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        self.prepare(flags)
        self.optimizer = engines.optimizer_of(self.mine, flags)
        gc.collect()  # frees the program and the modules of other stages
        self.memory = None  # from the end of the first step on

    def prepare(self, flags):
        raise NotImplementedError

    def run(self):
        """Runs forward and backward. Returns this rank's share of the loss."""
        raise NotImplementedError

    def step(self):
        """Runs a step. Returns seconds, CPU seconds of all ranks, and the loss."""
        watch = meter.Stopwatch([self.device])
        loss = self.run()
        engines.learn(self.mine, self.optimizer)
        if self.device.type == "cpu":
            dist.barrier()  # the clock runs until all ranks have finished
        wall, cpu = watch.elapsed()
        self.memory = self.memory or meter.memory_of([self.device])
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


def follow(kind, rank, world, flags, port):
    """Runs a process that is not rank 0: follows rank 0 until it stops."""
    contest.end_with(multiprocessing.parent_process().pid)
    me = kind(rank, world, flags, dist.TCPStore("127.0.0.1", port, is_master=False))
    while (code := me.command()) != STOP:
        me.step() if code == STEP else me.peak()
    dist.destroy_process_group()


class Ranks:
    """All ranks, controlled by the process that is rank 0. `kind`: their class."""

    def __init__(self, kind, world, flags):
        # The system chooses a port, as several engines start at the same time.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.others = [
            multiprocessing.get_context("spawn").Process(
                target=follow, args=(kind, rank, world, flags, store.port), daemon=True
            )
            for rank in range(1, world)
        ]
        for other in self.others:
            other.start()
        self.me = kind(0, world, flags, store)
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


class Replica(Rank):
    """A replica of DistributedDataParallel, a process with its part of the mini-batch.

    Buffers are not broadcast before each forward, as gpipe's replicas keep their own, too.
    """

    def prepare(self, flags):
        subject = engines.subject_of(flags)
        self.parameters, self.depth = subject.parameters(), len(subject.layers)
        subject.move_data(self.device, self.device)
        model = nn.Sequential(*subject.layers).to(self.device)
        self.model = DistributedDataParallel(model, broadcast_buffers=False)
        self.mine = list(model.parameters())
        self.loss = subject.loss
        self.input = subject.input.chunk(self.world)[self.rank]
        self.target = subject.target.chunk(self.world)[self.rank]

    def run(self):
        loss = self.loss(self.model(self.input), self.target)
        loss.backward()
        return loss.item() / self.world


def replicas_of(flags):
    return Ranks(Replica, REPLICAS, flags)
