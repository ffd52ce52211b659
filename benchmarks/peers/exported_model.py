"""An exported language model, cut by torch.distributed.pipelining.pipeline().

exported_peer.cc makes the same data, and cuts the same file with gpipe.
"""

import torch
import torch.nn.functional as F
from torch.distributed.pipelining import SplitPoint, pipeline


class ExportedModel:
    """The program of a file with the data of a step.

    `input` and `target` are tokens, `batch` rows of `side`.
    """

    def __init__(self, path, batch, side, seed):
        self.program = torch.export.load(path)
        output = next(iter(self.program.graph.find_nodes(op="output"))).args[0][0]
        words = output.meta["val"].shape[-1]
        torch.manual_seed(seed + 1)
        self.input = torch.randint(words, (batch, side))
        self.target = torch.randint(words, (batch, side))

    @staticmethod
    def loss(output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def parameters(self):
        return sum(p.numel() for p in self.program.parameters())

    def stage(self, rank, modules, microbatches):
        """Returns stage `rank`, where stages begin at these modules of the program."""
        pipe = pipeline(
            torch.export.unflatten(self.program),
            mb_args=(self.input.chunk(microbatches)[0],),
            split_spec={module: SplitPoint.BEGINNING for module in modules},
        )
        return pipe.build_stage(rank, torch.device("cpu"))
