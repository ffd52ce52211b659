"""The engines that run in one process.

An engine is a function from flags to a subject (models.py) and a step. The step runs
forward, backward and optimizer and returns the loss. The flags contain the number of
micro-batches, the balance and the checkpoint mode.
"""

import importlib

import torch
from torch import nn

import models
import plain_skips


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


def sequential(flags):
    """Makes the engine that runs the plain model on the whole mini-batch."""
    subject = models.Subject(flags.model, flags, flags.seed, plain_skips)
    return subject, stepper(subject, nn.Sequential(*subject.layers), flags)


def accumulation(flags):
    """Makes the engine that runs the plain model on one micro-batch after the other."""
    subject = models.Subject(flags.model, flags, flags.seed, plain_skips)
    model = nn.Sequential(*subject.layers)
    optimizer = optimizer_of(model.parameters(), flags)
    inputs = subject.input.chunk(flags.microbatches)
    targets = subject.target.chunk(flags.microbatches)

    def step():
        total = 0.0
        for each, target in zip(inputs, targets):
            share = len(each) / len(subject.input)
            loss = subject.loss(model(each), target) * share
            loss.backward()
            total += loss.item()
        learn(list(model.parameters()), optimizer)
        return total

    return subject, step


def piped(flags, engine, skips):
    """Makes an engine from a pipeline class.

    `engine`: a class with the arguments of torchgpipe's GPipe.
    `skips`: its module for skip tensors.
    """
    subject = models.Subject(flags.model, flags, flags.seed, skips)
    pipe = engine(
        nn.Sequential(*subject.layers),
        flags.balance,
        devices=["cpu"] * len(flags.balance),
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
    "torchgpipe": torchgpipe,
    "fairscale": fairscale,
}
