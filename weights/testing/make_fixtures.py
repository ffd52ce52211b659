"""Prints weights/testing/fixtures.h: what Python's torch.save and safetensors write.

    python3 weights/testing/make_fixtures.py > weights/testing/fixtures.h

needs torch (2.11 made what is there) and safetensors.
"""

import collections
import io
import os
import zipfile

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


def octal(text):
    for byte in text:
        char = chr(byte)
        yield char if 32 <= byte < 127 and char not in '"\\?' else f"\\{byte:03o}"


def show(name, text):
    print(f"\ninline constexpr std::string_view {name}(")
    line = ""
    for each in octal(text):
        if len(line) + len(each) > 72:
            print(f'    "{line}"')
            line = ""
        line += each
    print(f'    "{line}",\n    {len(text)});')


print("""\
// What Python writes. Made, and described, by make_fixtures.py in this folder:
//
//   python3 weights/testing/make_fixtures.py > weights/testing/fixtures.h
#pragma once

#include <string_view>

namespace gpipe::testing {

// clang-format off

// Whole files.""")
show("kNestedFile", saved(nested()))
show("kLegacyFile", saved({"w": torch.ones(1)}, _use_new_zipfile_serialization=False))
show(
    "kSafetensorsFile",
    safetensors.torch.save(
        {
            "weight": torch.tensor([[1.5, -2.0]]),
            "half": torch.tensor([0.5], dtype=torch.float16),
            "flags": torch.tensor([True, False, True]),
        },
        {"made by": 'Pythön "3"'},
    ),
)
print("\n// The data.pkl of files.")
show("kStridedPickle", pickle_of(strided()))
show("kEvilPickle", pickle_of({"w": torch.ones(1), "x": Evil()}))
for protocol in (3, 4, 5):
    show(f"kPickle{protocol}", pickle_of({"w": torch.ones(2)}, pickle_protocol=protocol))
print("\n// clang-format on\n\n}  // namespace gpipe::testing")
