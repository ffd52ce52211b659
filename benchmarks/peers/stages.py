"""The engines of torch.distributed.pipelining: a process per rank.

torch.distributed.pipelining has no skip tensors. So a stage receives the skip tensors
that it or later stages need as further inputs, and returns those for later stages as
further outputs. It has no checkpointing either: "always" recomputes a stage with
torch.utils.checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)
from torch.utils.checkpoint import checkpoint

import engines
import plain_skips
import ranks

SCHEDULES = {
    "pipelining-gpipe": ScheduleGPipe,
    "pipelining-1f1b": Schedule1F1B,
    "pipelining-interleaved1f1b": ScheduleInterleaved1F1B,
    "pipelining-zb": ScheduleInterleavedZeroBubble,
    "pipelining-zb2": ScheduleInterleavedZeroBubble,
    "pipelining-zbv": ScheduleZBVZeroBubble,
}


def ranks_of(flags):
    """Returns the number of processes."""
    return len(flags.balance) // engines.PIPELINING[flags.engine]


def stages_of(rank, flags):
    """Returns the stages of `rank`: every ranks-th one, or in a V there and back."""
    ranks, stages = ranks_of(flags), len(flags.balance)
    if SCHEDULES[flags.engine] is ScheduleZBVZeroBubble:
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


def add_lora(model, rank, targets):
    """Adds PEFT's adapters to the modules of a program whose last name is in `targets`.

    PEFT adapts nn.Linear, so the modules become such, with the weights of the program.
    """
    import peft  # only here, so that other models do not need it

    for name, module in list(model.named_modules()):
        if name.split(".")[-1] in targets:
            outputs, inputs = module.weight.shape
            linear = nn.Linear(inputs, outputs, bias=False, device="meta")
            linear.weight = module.weight
            model.set_submodule(name, linear)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets))
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


class ExportedModel:
    """An exported language model, cut by pipeline(), with the data of a step.

    peer_model.cc makes the same data, and cuts the same file with gpipe.

    `input` and `target` are tokens, `batch` rows of `side`. With a `lora_rank` only PEFT's
    adapters of the modules `lora_targets` are trained.
    """

    def __init__(self, path, batch, side, seed, lora_rank=0, lora_targets=()):
        program = torch.export.load(path)
        self.model = torch.export.unflatten(program)
        if lora_rank:
            add_lora(self.model, lora_rank, lora_targets)
        output = next(iter(program.graph.find_nodes(op="output"))).args[0][0]
        words = output.meta["val"].shape[-1]
        torch.manual_seed(seed + 1)
        self.input = torch.randint(words, (batch, side))
        self.target = torch.randint(words, (batch, side))

    @staticmethod
    def loss(output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def parameters(self):
        return sum(p.numel() for p in self.model.parameters())

    def stage(self, rank, modules, microbatches):
        """Returns stage `rank`, where stages begin at these modules of the program."""
        pipe = pipeline(
            self.model,
            mb_args=(self.input.chunk(microbatches)[0],),
            split_spec={module: SplitPoint.BEGINNING for module in modules},
        )
        return pipe.build_stage(rank, torch.device("cpu"))


class PipelineRank(ranks.Rank):
    """The stages of one rank."""

    def prepare(self, flags):
        mine = stages_of(self.rank, flags)
        if flags.exported:
            subject = ExportedModel(
                flags.exported,
                flags.batch,
                flags.side,
                flags.seed,
                flags.lora_rank,
                flags.lora_targets,
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
        schedule = SCHEDULES[flags.engine]
        single = schedule in (ScheduleGPipe, Schedule1F1B)
        self.schedule = schedule(
            stages[0] if single else stages, flags.microbatches, loss_fn=subject.loss
        )
        self.data = [subject.input] if 0 in mine else []
        last = len(flags.balance) - 1 in mine
        self.target = {"target": subject.target} if last else {}
        self.mine = [p for p in self.module.parameters() if p.requires_grad]

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

    def run(self):
        losses = []
        self.schedule.step(*self.data, **self.target, losses=losses)
        return torch.stack(losses).mean().item() if losses else 0.0


def make(flags):
    return ranks.Ranks(PipelineRank, ranks_of(flags), flags)
