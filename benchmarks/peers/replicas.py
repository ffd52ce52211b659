"""The engine of torch.nn.parallel.DistributedDataParallel: two replicas of the model.

Each replica is a process with its half of the mini-batch. Buffers are not broadcast
before each forward, as gpipe's replicas keep their own, too.
"""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import engines
import ranks

REPLICAS = 2


class Replica(ranks.Rank):
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


def make(flags):
    return ranks.Ranks(Replica, REPLICAS, flags)
