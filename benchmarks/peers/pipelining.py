"""Steps of torch.distributed.pipelining on two CPU processes, on demand.

A peer for //benchmarks:schedules_speed, which starts this program, writes a line
for every step that it wants and reads back the seconds that it took. Needs
PyTorch (2.11 was used).
"""

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def mlp(width):
    """32 layers of which each is a product and an activation."""
    layers = []
    for _ in range(32):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return layers, (width,)


class Block(nn.TransformerEncoderLayer):
    """A layer in which a token sees those before it and itself."""

    def __init__(self, width):
        super().__init__(width, 4, 4 * width, dropout=0.0, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(64)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return super().forward(x, src_mask=self.mask, is_causal=True)


def transformer(width):
    """8 blocks on sequences of 64."""
    return [Block(width) for _ in range(8)], (64, width)


MODELS = {"mlp": mlp, "transformer": transformer}


def run(rank, flags, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers, sizes = MODELS[flags.model](flags.width)
    half = len(layers) // 2
    mine = nn.Sequential(*(layers[:half] if rank == 0 else layers[half:]))
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[flags.schedule]
    schedule = kind(stage, flags.microbatches, loss_fn=nn.functional.mse_loss)
    data = torch.rand(flags.batch, *sizes)
    target = torch.rand(flags.batch, *sizes)

    def step():
        mine.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(data)
        else:
            schedule.step(target=target, losses=[])

    go = torch.zeros(1)
    while True:
        if rank == 0:
            go[0] = 1 if sys.stdin.readline() else 0
        dist.broadcast(go, 0)
        if not go[0]:
            break
        start = time.perf_counter()
        step()
        dist.barrier()
        if rank == 0:
            print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--microbatches", type=int, default=4)
    flags = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    other = mp.get_context("spawn").Process(target=run, args=(1, flags, port))
    other.start()
    run(0, flags, port)
    other.join()


if __name__ == "__main__":
    main()
