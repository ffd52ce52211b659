"""Writes files of fuzz_corpus/ that torch.save and safetensors write. Tests read them.

    python3 models/testing/make_fixtures.py

Requires torch, numpy and safetensors. The checked-in files were written with torch 2.15.
"""

import argparse
import collections
import io
import os
import pathlib
import zipfile

import numpy
import safetensors.torch
import torch


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def pickle_of(value, **options):
    archive = zipfile.ZipFile(io.BytesIO(saved(value, **options)))
    return archive.read("archive/data.pkl")


class Evil:
    def __reduce__(self):
        return os.system, ("echo executed > gpipe_pickle_was_executed",)


def strided():
    base = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return collections.OrderedDict(
        transposed=base.t(),
        row=base[1],
        bfloat16=torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
        float8=torch.tensor([1.0, 2.0], dtype=torch.float8_e4m3fn),
        complex=torch.tensor([1 + 2j], dtype=torch.complex64),
        bool=torch.tensor([True, False]),
        int64=torch.tensor(2**40 + 1),
        parameter=torch.nn.Parameter(torch.tensor([3.0])),
        uint16=torch.tensor([65535], dtype=torch.uint16),
        empty=torch.empty(0, 3),
    )


def nested():
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.5, -2.0]]))
        module.bias.fill_(0.25)
    return {
        "state_dict": module.state_dict(),
        "epoch": 3,
        "lr": 0.5,
        "tags": ["a", None, True, (1, -1, 2**40)],
    }


def beside_weights():
    """What training programs save beside weights. torch.load(weights_only=True) reads
    all but "unsafe"."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 10, torch.qint8)
    named = torch.ones(2)
    named.note = "an attribute"
    return {
        "epoch": 3,
        "rng_state": torch.get_rng_state(),
        "seed": 2**64 - 1,  # torch.initial_seed() after torch.manual_seed(-1)
        "negative": -(2**200),
        "longest": 2**3000,
        "generator": numpy.random.PCG64(7).state,
        "counts": collections.Counter({"a": 2}),
        "set": {1, "b"},
        "complex": 1 + 2j,
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"ab"),
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "small_dtype": torch.uint4,
        "layout": torch.sparse_coo,
        "size": torch.Size([2, 3]),
        "sparse": torch.eye(2).to_sparse(),
        "csr": torch.eye(2).to_sparse_csr(),
        "quantized": quantized,
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "meta": torch.empty(2, device="meta"),
        "named": named,
        "none": None,
        "optimizer": optimizer.state_dict(),
        "unsafe": {
            "args": argparse.Namespace(lr=0.5, shape=(1, 2)),
            "best": numpy.float64(0.5),
            "array": numpy.arange(3),
            "path": pathlib.PurePosixPath("a/b"),
            "default": collections.defaultdict(list, a=[1]),
            "frozenset": frozenset([1]),
            "function": os.system,
            "class": argparse.Namespace,
        },
    }


def write(name, content):
    (pathlib.Path(__file__).parent / "fuzz_corpus" / name).write_bytes(content)


write("torch_file.nested", saved(nested()))
write(
    "torch_file.legacy",
    saved({"w": torch.ones(1)}, _use_new_zipfile_serialization=False),
)
write(
    "safetensors.python",
    safetensors.torch.save(
        {
            "weight": torch.tensor([[1.5, -2.0]]),
            "half": torch.tensor([0.5], dtype=torch.float16),
            "flags": torch.tensor([True, False, True]),
        },
        {"made by": 'Pythön "3"'},
    ),
)
# Records data.pkl of files of torch.save.
write("pickle.strided", pickle_of(strided()))
write("pickle.evil", pickle_of({"w": torch.ones(1), "x": Evil()}))
for protocol in (2, 4):
    write(
        f"pickle.checkpoint{protocol}",
        pickle_of({**beside_weights(), "model": {"w": torch.ones(2)}}, pickle_protocol=protocol),
    )
for protocol in (3, 4, 5):
    write(
        f"pickle.protocol{protocol}",
        pickle_of({"w": torch.ones(2)}, pickle_protocol=protocol),
    )
