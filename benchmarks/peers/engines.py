"""The engines that run in one process.

An engine is a function from flags to a subject (models.py) and a step. The step runs
forward, backward and optimizer and returns the loss. The flags contain the number of
micro-batches, the balance, the checkpoint mode, and a device per partition. Engines
without partitions use the first device.
"""

import importlib

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import models
import plain_skips

# The engines of stages.py, which is not imported here, and their stages per process.
PIPELINING = {
    "pipelining-gpipe": 1,
    "pipelining-1f1b": 1,
    "pipelining-interleaved1f1b": 2,
    "pipelining-zb": 1,
    "pipelining-zb2": 2,
    "pipelining-zbv": 2,
}


def optimizer_of(parameters, flags):
    """Returns plain SGD, or None if the learning rate is 0."""
    if flags.learning_rate == 0:
        return None
    return torch.optim.SGD(parameters, lr=flags.learning_rate)


def learn(parameters, optimizer):
    """Ends a step: runs the optimizer, if any, and drops the gradients."""
    if optimizer is not None:
        optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def stepper(subject, forward, flags):
    """Returns a step that computes the output of a mini-batch by `forward`(input)."""
    parameters = [p for layer in subject.layers for p in layer.parameters()]
    optimizer = optimizer_of(parameters, flags)

    def step():
        loss = subject.loss(forward(subject.input), subject.target)
        loss.backward()
        learn(parameters, optimizer)
        return loss.item()

    return step


def subject_of(flags, skips=plain_skips):
    """Makes the model, with the precision of the flags."""
    subject = models.Subject(flags.model, flags, flags.seed, skips)
    if flags.amp:
        subject.use_autocast(flags.devices[0].type, getattr(torch, flags.amp))
    return subject


def plain(flags):
    """Returns a subject on one device, and its layers as one module."""
    subject = subject_of(flags)
    subject.move_data(flags.devices[0], flags.devices[0])
    return subject, nn.Sequential(*subject.layers).to(flags.devices[0])


def sequential(flags):
    """Makes the engine that runs the plain model on the whole mini-batch."""
    subject, model = plain(flags)
    return subject, stepper(subject, model, flags)


def accumulation(flags, run=lambda model, each: model(each)):
    """Makes the engine that runs the plain model on one micro-batch after the other.

    `run`(model, input): returns the output of a micro-batch.
    """
    subject, model = plain(flags)
    optimizer = optimizer_of(model.parameters(), flags)
    inputs = subject.input.chunk(flags.microbatches)
    targets = subject.target.chunk(flags.microbatches)

    def step():
        total = 0.0
        for each, target in zip(inputs, targets):
            share = len(each) / len(subject.input)
            loss = subject.loss(run(model, each), target) * share
            loss.backward()
            total = total + loss.detach()
        learn(list(model.parameters()), optimizer)
        return total.item()

    return subject, step


def recomputation(flags):
    """Makes the engine "accumulation" that recomputes each micro-batch's activations."""
    return accumulation(
        flags, lambda model, each: checkpoint(model, each, use_reentrant=False)
    )


def piped(flags, engine, skips):
    """Makes an engine from a pipeline class.

    `engine`: a class with the arguments of torchgpipe's GPipe.
    `skips`: its module for skip tensors.
    """
    subject = subject_of(flags, skips)
    subject.move_data(flags.devices[0], flags.devices[-1])
    pipe = engine(
        nn.Sequential(*subject.layers),
        flags.balance,
        devices=flags.devices,
        chunks=flags.microbatches,
        checkpoint=flags.checkpoint,
    )
    return subject, stepper(subject, pipe, flags)


def torchgpipe(flags):
    skips = importlib.import_module("torchgpipe.skip")
    return piped(flags, importlib.import_module("torchgpipe").GPipe, skips)


def fairscale(flags):
    skips = importlib.import_module("fairscale.nn.pipe.skip")
    return piped(flags, importlib.import_module("fairscale.nn").Pipe, skips)


ENGINES = {
    "sequential": sequential,
    "accumulation": accumulation,
    "checkpoint": recomputation,
    "torchgpipe": torchgpipe,
    "fairscale": fairscale,
}
