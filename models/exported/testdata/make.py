#!/usr/bin/env python3
"""Writes the models of the tests: NAME.pt2, and beside it NAME.safetensors with what
Python computes with exported.module() on one thread:

    python3 models/exported/testdata/make.py models/exported/testdata [NAME...]

Models that only the tests of models/exported read are in details/, and files of earlier
versions of PyTorch, which this script wrote with them, in versions/.

Needs torch and safetensors, and transformers for "experts" and "llama". The tensors of
NAME.safetensors, after one training step with torch.manual_seed(7) and the loss sum over
i of (output.i * weight.i).sum():

    input.i       an input
    output.i      an output
    weight.i      the factor of an output in the loss
    grad.NAME     the gradient of a parameter
    buffer.NAME   a buffer after the step
    eval.i        an output of the model in eval mode, before the step

"scanned" is computed with a loop. Python's scan multiplies by copies of transposed
weights in training, so that the last bits differ.

The metadata name the machine, because the bits depend on the CPU.
"""
import copy
import os
import re
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


class Block(nn.Module):
    """A transformer block, with an optional mask for the attention."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        rows, length, width = x.shape
        q, k, v = (y.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None,
            dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(rows, length, width)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A language model whose output layer has the weight of the token embedding."""

    def __init__(self, dropout, words=31, width=16, context=12):
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Masked(nn.Module):
    """An encoder with a padding mask as its second input, and two outputs."""

    def __init__(self, words=23, width=16):
        super().__init__()
        self.token = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 2, 0.0) for _ in range(3))
        self.pooled, self.head = nn.Linear(width, 3), nn.Linear(width, words)

    def forward(self, ids, valid):
        mask = valid[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x), self.pooled(x[:, 0]).tanh()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 10, num_layers=2, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class UNet(nn.Module):
    """A U-Net of depth 2, whose outer skip lives over nearly the whole model."""

    def __init__(self, width=3, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.down = nn.ModuleList(self.convs(width << k, width << (k + 1)) for k in range(depth))
        self.middle = self.convs(width << depth, width << depth)
        self.up = nn.ModuleList(self.convs(3 * (width << k), width << k)
                                for k in reversed(range(depth)))
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def convs(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False),
                             nn.BatchNorm2d(after), nn.ReLU(inplace=True),
                             nn.Conv2d(after, after, 3, padding=1), nn.ReLU())

    def forward(self, x):
        x = self.stem(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(functional.max_pool2d(x, 2))
        x = self.middle(x)
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat([x, skips.pop()], dim=1))
        return self.head(x)


class Regions(nn.Module):
    """Regions without gradients, with autocast and with checkpointing, an assigned
    buffer, and arithmetic on sizes."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 5)
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(width), persistent=False)

    def forward(self, x):
        self.calls += 1
        x = self.first(x) * self.scale
        with torch.no_grad():
            self.average = 0.9 * self.average + 0.1 * x.mean(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = functional.gelu(self.second(x))
        x = x.float() / (x.shape[0] + 1) ** 0.5
        x = x + checkpoint(self.third, x, use_reentrant=False).sigmoid()
        return self.head(x.masked_fill(x > 4.0, float("-inf")).clamp_min(-8.0))


class Photos(nn.Module):
    """A classifier of images."""

    def __init__(self, width=4, classes=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.block = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = functional.relu(self.norm(self.stem(x)))
        x = x + functional.relu(self.block(x))
        return self.head(x.mean((2, 3)))


class Outlines(nn.Module):
    """A segmentation of images of any size."""

    def __init__(self, width=4):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 1, 1)
        self.norm, self.block = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        x = functional.relu(self.norm(self.stem(x)))
        return self.head(x + functional.relu(self.block(x)))


class Resized(nn.Module):
    """A segmentation of images of any size, which reads sizes late."""

    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.mix, self.head = nn.Conv2d(width, width, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.stem(x)
        low = self.norm(self.down(functional.relu(high)))
        y = functional.interpolate(functional.relu(low), size=high.shape[-2:], mode="bilinear")
        y = self.head(functional.relu(self.mix(y)))
        return functional.interpolate(y, size=x.shape[-2:], mode="bilinear")


class Letters(nn.Module):
    """A language model for texts of any length, without randomness."""

    def __init__(self, words=16, width=8):
        super().__init__()
        self.embed, self.mix = nn.Embedding(words, width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + functional.gelu(self.mix(self.norm(x.cumsum(1)))))


class Styles(nn.Module):
    """Convolutions with an InstanceNorm that has running statistics."""

    def __init__(self, width=4):
        super().__init__()
        self.stem, self.head = nn.Conv1d(2, width, 3, padding=1), nn.Conv1d(width, 2, 1)
        self.norm = nn.InstanceNorm1d(width, affine=True, track_running_stats=True)

    def forward(self, x):
        return self.head(functional.gelu(self.norm(self.stem(x))))


class Stateless(nn.Module):
    """Norms without running statistics, which keep those of the batch in eval mode."""

    def __init__(self, width=4):
        super().__init__()
        self.stem, self.head = nn.Conv1d(2, width, 3, padding=1), nn.Conv1d(width, 2, 1)
        self.first = nn.InstanceNorm1d(width)
        self.second = nn.BatchNorm1d(width, track_running_stats=False)

    def forward(self, x):
        x = self.second(functional.gelu(self.first(self.stem(x))))
        weight = functional.batch_norm(  # standardised, as in BiT and NF-ResNet
            self.head.weight.reshape(1, 2, -1), None, None, training=True, momentum=0.0)
        return functional.conv1d(x, weight.reshape_as(self.head.weight), self.head.bias)


class Seen(nn.Module):
    """A buffer that counts in place what later layers have computed."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, width)
        self.third = nn.Linear(width, 3)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x):
        early = self.first(x)
        late = self.second(functional.relu(early))
        y = self.third(functional.relu(late))
        self.seen += (early + late).detach().abs().sum(0)
        return y


class Aliased(nn.Module):
    """Buffers that are assigned from each other, and operators that return their
    argument, or a view of it, although their schemas do not say so."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, width)
        self.third = nn.Linear(width, 3)
        for name in ("now", "before", "mean", "twin"):
            self.register_buffer(name, torch.randn(width))

    def forward(self, x):
        hidden = functional.dropout(self.first(x), 0.0, self.training)
        hidden.relu_()
        mean = hidden.detach().mean(0)
        hidden = torch.tanh(self.second(hidden + self.now))
        shown, kept = torch.broadcast_tensors(hidden, self.before)[1], self.mean.type_as(x)
        y = self.third(hidden + shown + kept)
        self.mean.copy_(mean)
        self.before.copy_(self.now)
        self.now.copy_(mean)
        self.twin.copy_(self.mean)
        return y


class Ramps(nn.Module):
    """A constant that changes in place after a dropout, one that is returned, an expanded
    buffer, and weights without elements."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.none, self.nothing = (nn.Parameter(torch.empty(0, 4)) for _ in range(2))
        self.register_buffer("halves", torch.tensor([0.5]).expand(4))

    def forward(self, x, shift):
        ramp = functional.dropout(torch.arange(1.0, 5.0), 0.5, self.training)
        ramp.mul_(2)
        rows = torch.cat([self.halves * self.first(x) + shift, self.none, self.nothing])
        return self.second(torch.tanh(rows * ramp)), torch.arange(x.shape[0]).type_as(x)


class Tables(nn.Module):
    """A constant that is computed from a buffer and from the number of tokens."""

    def __init__(self, words=11, width=4, context=16):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.register_buffer("table", torch.randn(context, width))

    def forward(self, ids):
        return self.head(self.embed(ids) + self.table.cos()[:ids.shape[1]])


class Vmapped(nn.Module):
    """A call of torch.vmap, which is refused."""

    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return torch.vmap(torch.sin)(self.fc(x))


class Averages(nn.Module):
    """Sparse gradients, a buffer of float8, and one that nobody reads, for a comparison
    in micro-batches."""

    def __init__(self, words=11, width=4):
        super().__init__()
        self.embed = nn.Embedding(words, width, sparse=True)
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, words)
        self.register_buffer("scale", torch.randn(width).to(torch.float8_e4m3fn))
        self.register_buffer("unread", torch.randn(width))

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)) * self.scale.float())


class Counted(nn.Module):
    """A number that is computed from a tensor, with a check of its range."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        count = (x > 0).sum().item()
        torch._check(count <= 30)
        return self.second(self.first(x) * (count + 1))


class Noisy(nn.Module):
    """Dropout, and noise in training that no flag of an operator turns off."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.first(x))
        if self.training:
            x = x + torch.rand_like(x)
        return self.second(x)


class Deep(nn.Module):
    """Stochastic depth as in torchvision, timm and transformers, whose training flag
    the export loses."""

    def __init__(self, width=4, rate=0.4):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.rate = rate

    def drop(self, x):
        if not self.training:
            return x
        kept = torch.empty([x.shape[0], 1], dtype=x.dtype, device=x.device)
        return x * kept.bernoulli_(1 - self.rate).div_(1 - self.rate)

    def drop_batch(self, x):
        if not self.training:
            return x
        kept = x.new_empty([1, 1]).bernoulli_(1 - self.rate)
        kept.div_(1 - self.rate)
        return x * kept

    def drop_divided(self, x):
        if not self.training:
            return x
        kept = torch.rand([x.shape[0], 1], dtype=x.dtype, device=x.device)
        kept = torch.floor(kept + (1 - self.rate))
        return x.div(1 - self.rate) * kept

    def drop_in_place(self, x):
        if not self.training:
            return x
        kept = 1 - self.rate + torch.rand([x.shape[0], 1], dtype=x.dtype, device=x.device)
        return x.div(1 - self.rate) * kept.floor_()

    def forward(self, x):
        y = self.drop(functional.gelu(self.first(x)))
        y += x
        y = y + self.drop_batch(self.norm(self.second(y)))
        y = self.drop_in_place(y + self.drop_divided(self.third(y)))
        return self.head(y)


class Scattered(nn.Module):
    """A BatchNorm, and noise in training that no flag of an operator turns off."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.register_buffer("scale", torch.randn(width))

    def forward(self, x):
        x = self.norm(self.first(x)) * self.scale
        if self.training:
            x = x + torch.rand_like(x)
        x = functional.gelu(self.second(x))
        return self.head(functional.gelu(self.third(x)) * self.scale)


class Branches(nn.Module):
    """Branches with parameters of their own: chosen by values, by values in a branch, and
    by a size. The result of one changes in place afterwards."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.a, self.b, self.c, self.last = (
            nn.Linear(width, width) for _ in range(5))
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(3))
        self.register_buffer("limit", torch.zeros(()))

    def inner(self, h):
        return torch.cond(h.mean() > 0.2, lambda h: self.c(h) * self.limit.cos(),
                          lambda h: h.exp(), (h,))

    def forward(self, x):
        h = self.first(x)
        rows = x.shape[0]
        y, sums = torch.cond(
            x[:, 0].sum() > self.limit,
            lambda h: ((self.a(h).tanh() * self.scale + self.inner(h) * h).relu(),
                       h.sum(1) / rows),
            lambda h: (self.b(h).sigmoid() * self.scale * h, (h * self.shift.sum()).mean(1)),
            (h,))
        y += h
        y = y * sums[:, None]
        y = torch.cond(rows > 3, lambda y: y.sin() * self.scale, lambda y: y.cos(), (y,))
        return self.last(y)


class Dropped(nn.Module):
    """Dropout in a branch."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        h = torch.cond(x[:, 0].sum() > -100,
                       lambda h: functional.dropout(h, 0.5, self.training).exp(),
                       lambda h: h.sin(), (self.first(x),))
        return self.second(h)


class Alternating(nn.Module):
    """A branch that is chosen by the number of calls."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.a, self.last = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        h = torch.cond(self.calls % 2 == 1, lambda h: self.a(h), lambda h: h.sin(),
                       (self.first(x),))
        return self.last(h.relu())


def loop(step, state, rows):
    """Computes what scan computes."""
    results = []
    for row in rows.unbind():
        state, result = step(state, row)
        results.append(result)
    return state, torch.stack(results)


class Scanned(nn.Module):
    """A state-space model, whose states are a scan over the tokens."""

    def __init__(self, width=6, states=3):
        super().__init__()
        self.scan = scan
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)
        self.step, self.project = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.decay = nn.Parameter(torch.rand(width, states))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = self.first(x)

        def step(state, row):
            time = functional.softplus(self.step(row))[..., None]
            into, out = self.project(row).chunk(2, dim=-1)
            state = (state * torch.exp(-time * self.decay.exp())
                     + time * into[:, None] * row[..., None])
            return state, (state * out[:, None]).sum(-1) + self.skip * row

        state, y = self.scan(step, x.new_zeros(x.shape[0], *self.decay.shape),
                             x.transpose(0, 1))
        return self.last(functional.silu(y.transpose(0, 1))) + state.sum((1, 2))[:, None, None]


class Mapped(nn.Module):
    """A map over the rows."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.each, self.last = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        return self.last(map_rows(lambda row: self.each(row).tanh() * row, x))


class Looped(nn.Module):
    """A loop until all values are small, at most five times."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.each, self.last = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        count, h = while_loop(
            lambda count, h: (count < 5) & (h.abs().max() > 0.5),
            lambda count, h: (count + 1, self.each(h).tanh() * h * 0.9),
            (torch.zeros((), dtype=torch.long), self.first(x)))
        return self.last(h) * (count + 1)


class Alone(nn.Module):
    """A map and a loop that take nothing from outside, and autocast for other devices than
    those of the export."""

    def __init__(self, width=4):
        super().__init__()
        self.first, self.last = (nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        x = map_rows(lambda row: row.sin(), self.first(x))
        count, h = while_loop(
            lambda count, h: count < 3, lambda count, h: (count + 1, h.tanh() * 2),
            (torch.zeros((), dtype=torch.long), x))
        with torch.autocast("cuda", enabled=False):
            return self.last(h) * count


class Experts(nn.Module):
    """A mixture of experts as transformers exports it: rows in the order of experts."""

    def __init__(self, width=8, hidden=4, experts=4, chosen=2):
        super().__init__()
        import transformers.integrations.moe  # noqa: F401, registers the operator
        self.chosen, self.experts = chosen, experts
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * hidden, width))
        self.down = nn.Parameter(torch.randn(experts, width, hidden))

    def mix(self, x):
        product = torch.ops.transformers.grouped_mm_fallback
        share, expert = self.router(x).softmax(-1).topk(self.chosen)
        expert, order = expert.reshape(-1).sort()
        counts = torch.histc(expert.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, value = product(x[order // self.chosen], self.up.transpose(-2, -1), ends).chunk(
            2, dim=-1)
        y = product(functional.silu(gate) * value, self.down.transpose(-2, -1), ends)
        y = y * share.reshape(-1)[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return y[back].view(x.shape[0], self.chosen, -1).sum(1)

    def forward(self, x):
        x = self.first(x)
        return self.last(x + self.mix(x))


def signed_rows(sign):
    """Rows whose first column adds up to a number with `sign`, and for every two rows to
    one with `sign`, `-sign`, `sign`, `-sign`."""
    x = torch.randn(8, 4)
    x[:, 0] = sign * torch.tensor([2.0, 1.0, 0.5, -1.5, -0.5, 1.0, -0.75, 0.25])
    return (x,)


def mlp():
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25),
                         nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def mask_of(rows, length):
    return torch.arange(length)[None, :] < torch.arange(rows)[:, None] % length + 1


def tiny():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))


class Decoder(nn.Module):
    """A causal model of tokens. `attend(i, q, k, v)` is the attention of layer i."""

    def __init__(self, words=13, width=8, heads=2, layers=2, most=24):
        super().__init__()
        self.heads, self.most = heads, most
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(most, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids, places, attend):
        x = self.embed(ids) + self.places(places)
        for i, (qkv, out) in enumerate(zip(self.qkv, self.out)):
            rows, length, width = x.shape
            q, k, v = (y.view(rows, length, self.heads, -1).transpose(1, 2)
                       for y in qkv(x).chunk(3, dim=-1))
            y = attend(i, q, k, v).transpose(1, 2).reshape(rows, length, width)
            x = x + functional.gelu(out(y))
        return self.head(x)


class Window(nn.Module):
    """A Decoder that reads all tokens in each call."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(
            input_ids, torch.arange(input_ids.shape[1]),
            lambda i, q, k, v: functional.scaled_dot_product_attention(
                q, k, v, is_causal=True))


class Stepped(nn.Module):
    """A Decoder that keeps the keys and values of earlier tokens in buffers. As in
    transformers' exportable module, each layer has a length, and all are set first."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        size = (1, model.heads, model.most, model.embed.embedding_dim // model.heads)
        for i in range(len(model.qkv)):
            self.register_buffer(f"key_cache_{i}", torch.zeros(size), persistent=False)
            self.register_buffer(f"value_cache_{i}", torch.zeros(size), persistent=False)
            self.register_buffer(f"length_{i}", torch.tensor(0), persistent=False)

    def forward(self, input_ids, cache_position):
        for i in range(len(self.model.qkv)):
            getattr(self, f"length_{i}").copy_(cache_position[0])
        tokens = input_ids.shape[1]

        def attend(i, q, k, v):
            length = getattr(self, f"length_{i}")
            places = torch.arange(tokens) + length
            length.add_(tokens)
            keys = getattr(self, f"key_cache_{i}").index_copy_(2, places, k)
            values = getattr(self, f"value_cache_{i}").index_copy_(2, places, v)
            mask = torch.arange(self.model.most)[None, :] <= places[:, None]
            return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

        return self.model(input_ids, torch.arange(tokens) + self.length_0, attend)


# A function that makes the model, one that makes its inputs, and dimensions of the inputs
# that vary beside dimension 0, with their names, largest sizes, and smallest sizes if
# these are not 2.
MODELS = {
    "tiny": (tiny, lambda: (torch.randn(4, 2),)),
    "mlp": (mlp, lambda: (torch.randn(8, 10),)),
    "gpt": (lambda: Gpt(0.1), lambda: (torch.randint(0, 31, (8, 12)),)),
    "masked": (Masked, lambda: (torch.randint(0, 23, (8, 9)), mask_of(8, 9))),
    "lstm": (Recurrent, lambda: (torch.randn(8, 5, 6),)),
    "unet": (UNet, lambda: (torch.randn(8, 2, 8, 8),)),
    "regions": (Regions, lambda: (torch.randn(8, 12),)),
    "photos": (Photos, lambda: (torch.randn(4, 3, 16, 16),)),
    "outlines": (Outlines, lambda: (torch.randn(4, 3, 8, 8),),
                 {2: ("height", 512), 3: ("width", 512)}),
    "resized": (Resized, lambda: (torch.randn(4, 3, 14, 10),),
                {2: ("height", 512, 5), 3: ("width", 512, 5)}),
    "letters": (Letters, lambda: (torch.randint(0, 16, (4, 6)),), {1: ("tokens", 512)}),
    "styles": (Styles, lambda: (torch.randn(8, 2, 5),)),
    "stateless": (Stateless, lambda: (torch.randn(8, 2, 5),)),
    "seen": (Seen, lambda: (torch.randn(8, 4),)),
    "aliased": (Aliased, lambda: (torch.randn(8, 4),)),
    "ramps": (Ramps, lambda: (torch.randn(8, 4), torch.randn(8, 4))),
    "tables": (Tables, lambda: (torch.randint(0, 11, (4, 6)),), {1: ("tokens", 16)}),
    "counted": (Counted, lambda: (torch.randn(8, 4),)),
    "noisy": (Noisy, lambda: (torch.randn(8, 4),)),
    "quiet": (Noisy, lambda: (torch.randn(8, 4),)),
    "deep": (Deep, lambda: (torch.randn(8, 4),)),
    "scattered": (Scattered, lambda: (torch.randn(8, 4),)),
    "steady": (Scattered, lambda: (torch.randn(8, 4),)),
    "branches": (Branches, lambda: signed_rows(1)),
    "other_branches": (Branches, lambda: signed_rows(-1)),
    "dropped": (Dropped, lambda: (torch.randn(8, 4),)),
    "alternating": (Alternating, lambda: (torch.randn(8, 4),)),
    "scanned": (Scanned, lambda: (torch.randn(8, 5, 4),)),
    "mapped": (Mapped, lambda: (torch.randn(8, 4),)),
    "looped": (Looped, lambda: (torch.randn(8, 4) * 3,)),
    "alone": (Alone, lambda: (torch.randn(8, 4),)),
    "experts": (Experts, lambda: (torch.randn(8, 4),)),
}
EXPORTED_IN_EVAL_MODE = {"quiet", "steady"}
DETAILS = {"aliased", "alone", "alternating", "branches", "deep", "dropped", "experts", "generated",
           "looped", "mapped", "other_branches", "ramps", "resized", "scanned", "stateless", "styles",
           "vmapped"}


def path_of(folder, name):
    return os.path.join(folder, "details" if name in DETAILS else "", name)


def write_weightless(folder):
    """Writes a model of the meta device, whose weights have no values."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False),
                              nn.ReLU(), nn.Linear(4, 2))
        inputs = (torch.empty(4, 4),)
    write_program(model, inputs, {}, os.path.join(folder, "weightless.pt2"))


def write_vmapped(folder):
    write_program(Vmapped(), (torch.randn(4, 4),), {}, path_of(folder, "vmapped") + ".pt2")


def write_averages(folder):
    """Writes a model, and beside it the .pt file of tools/export_examples.py."""
    sys.path.append(os.path.join(os.path.dirname(__file__), "../../../tools"))
    import export_examples
    model, inputs = Averages().train(), (torch.randint(0, 11, (8,)),)
    path = os.path.join(folder, "averages")
    program = write_program(model, inputs, {}, path + ".pt2")
    export_examples.save_step(model, program, inputs, path + ".pt")


def write_generated(folder):
    """Writes a Decoder as window.pt2, as stepped.pt2 for one token in each call, and as
    prefilled.pt2 for any number. generated.safetensors has prompts and what follows."""
    model = Decoder().eval()
    for parameter in model.parameters():
        parameter.data *= 2  # else the same token follows again and again
    path = lambda name: os.path.join(folder, name)
    window, stepped = Window(model).eval(), Stepped(model).eval()
    write_program(window, (torch.randint(0, 13, (2, 6)),), {1: ("tokens", model.most)},
                  path("window.pt2"))
    inputs, tokens = (torch.tensor([[3]]), torch.tensor([0])), torch.export.Dim("tokens", max=24)
    for name, dims in (("stepped", None), ("prefilled", ({1: tokens}, {0: tokens}))):
        if dims:
            inputs = (torch.tensor([[3, 4, 5]]), torch.arange(3))
        with torch.no_grad():
            exported = torch.export.export(stepped, inputs, dynamic_shapes=dims, strict=False)
        shorten_paths(exported)
        torch.export.save(exported, path(name + ".pt2"))
    found = {}
    for i, prompt in enumerate([[1, 2, 3], [7], [12, 0, 5, 5, 4]]):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(12):
                ids.append(window(torch.tensor([ids]))[0, -1].argmax().item())
            found[f"logits.{i}"] = window(torch.tensor([ids]))[0]
        found[f"prompt.{i}"], found[f"tokens.{i}"] = torch.tensor(prompt), torch.tensor(ids)
        print(ids)
    save_file(found, path_of(folder, "generated") + ".safetensors")


def write_llama(folder):
    """Writes a small Llama of transformers as a folder, llama/, and what the first Python
    program of docs/fine_tuning.md exports from it, llama.pt2. Its tokens are ASCII."""
    import transformers
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048,
    )).save_pretrained(os.path.join(folder, "llama"))
    os.remove(os.path.join(folder, "llama/generation_config.json"))
    path = os.path.join(os.path.dirname(__file__), "../../../docs/fine_tuning.md")
    with open(path, encoding="utf-8") as file:
        code = re.search("```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    save = torch.export.save

    def save_without_traces(program, path):
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # most of the file
        save(program, path)

    torch.export.save = save_without_traces
    exec(code.replace("/models/", folder + "/"), {})  # pylint: disable=exec-used
    torch.export.save = save


def write_program(model, inputs, dims, path):
    """Exports a model to a file, and returns the program. `dims`: see MODELS."""
    varying = {0: torch.export.Dim("batch", min=1, max=4096)}
    for dim, (name, most, *least) in dims.items():
        varying[dim] = torch.export.Dim(name, min=least[0] if least else 2, max=most)
    exported = torch.export.export(
        model, inputs, dynamic_shapes=tuple(varying for _ in inputs), strict=False)
    shorten_paths(exported)
    torch.export.save(exported, path)
    return exported


def shorten_paths(exported):
    """Removes the folders of this machine from the stack traces."""
    for module in exported.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            trace = node.meta.get("stack_trace")
            if trace:
                node.meta["stack_trace"] = re.sub(
                    r'File "[^"]*?(site-packages/[^"]*|[^"/]*)"', r'File "\1"', trace)


def tensors(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return ""


def main(folder, names):
    others = {"weightless": write_weightless, "averages": write_averages,
              "vmapped": write_vmapped, "generated": write_generated,
              "llama": write_llama}
    for name, write in others.items():
        if not names or name in names:
            torch.manual_seed(1)
            write(folder)
    for name in [name for name in names if name not in others] if names else list(MODELS):
        make_model, make_inputs, *dims = MODELS[name]
        torch.manual_seed(1)
        model, inputs = make_model().train(name not in EXPORTED_IN_EVAL_MODE), make_inputs()
        exported = write_program(model, inputs, dims[0] if dims else {},
                                 path_of(folder, name) + ".pt2")

        found = {f"input.{i}": each for i, each in enumerate(inputs)}
        evaluated = copy.deepcopy(model).eval()
        with torch.no_grad():
            found |= {f"eval.{i}": y for i, y in enumerate(tensors(evaluated(*inputs)))}
        module = exported.module()
        if name == "scanned":
            module, module.scan = model, loop
        torch.manual_seed(7)
        outputs = tensors(module(*inputs))
        weights = [torch.randn(y.shape) for y in outputs]
        sum((y * w).sum() for y, w in zip(outputs, weights)).backward()
        found |= {f"output.{i}": y.detach() for i, y in enumerate(outputs)}
        found |= {f"weight.{i}": w for i, w in enumerate(weights)}
        found |= {f"grad.{k}": p.grad for k, p in module.named_parameters()
                  if p.grad is not None}
        found |= {f"buffer.{k}": b for k, b in module.named_buffers()}
        path = path_of(folder, name) + ".safetensors"
        save_file({k: v.contiguous().clone() for k, v in found.items()}, path,
                  {"torch": torch.__version__.split("+")[0], "cpu": cpu_name(),
                   "capability": torch.backends.cpu.get_cpu_capability()})
        print(name, len(exported.graph.nodes), "nodes", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
