"""Exchanges weights between convert_weights and Python, and compares them bitwise.

    weights_python_check.py CONVERT_WEIGHTS EMPTY_FOLDER

For each model:
- C++ writes a .pt and a .safetensors file. torch.load(weights_only=True) and
  safetensors read equal tensors from them.
- Python writes tensors of random bits with the same names in both formats. C++ loads
  them into the model and writes them in the other format. Python reads equal tensors.
For ResNets, also exchanges torchvision's own models with torchvision's names.
Finally checks dtypes, strides, shared memory, nested dicts and pickle protocols.
"""

import collections
import pathlib
import subprocess
import sys

import safetensors
import safetensors.torch
import torch

CONVERT, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])

MODELS = {
    "resnet101": ["--model=resnet101"],
    "resnet50": ["--model=resnet50", "--classes=10"],
    "amoebanetd": ["--model=amoebanetd", "--layers=3", "--width=16"],
    "unet": ["--model=unet", "--depth=3", "--convolutions=2", "--width=8"],
    "transformer": ["--model=transformer", "--layers=2", "--width=32"],
    "transformer, tied": [
        "--model=transformer",
        "--layers=2",
        "--width=32",
        "--tied_embeddings",
    ],
}


def convert(*flags):
    subprocess.run([CONVERT, *flags], check=True)


def read(name):
    if name.endswith(".safetensors"):
        return safetensors.torch.load_file(FOLDER / name)
    return torch.load(FOLDER / name, weights_only=True)


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def same(a, b):
    assert set(a) == set(b), set(a) ^ set(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert bits(a[name]) == bits(b[name]), name


def random_bits(like):
    """Returns tensors of random bits: also NaNs, infinities and denormals."""
    result = collections.OrderedDict()
    for name, tensor in like.items():
        size = tensor.numel() * tensor.element_size()
        flat = torch.randint(256, (size,), dtype=torch.uint8)
        result[name] = flat.view(tensor.dtype).reshape(tensor.shape)
    return result


def model(name, flags):
    convert(*flags, "--seed=1", f"--out={FOLDER}/cc.pt")
    convert(*flags, "--seed=1", f"--out={FOLDER}/cc.safetensors")
    initial = read("cc.pt")
    same(initial, read("cc.safetensors"))

    random = random_bits(initial)
    torch.save(random, FOLDER / "py.pt")
    safetensors.torch.save_file(random, FOLDER / "py.safetensors")
    convert(*flags, f"--in={FOLDER}/py.pt", f"--out={FOLDER}/cc.safetensors")
    convert(*flags, f"--in={FOLDER}/py.safetensors", f"--out={FOLDER}/cc.pt")
    same(random, read("cc.safetensors"))
    same(random, read("cc.pt"))
    size = sum(each.numel() for each in random.values())
    print(f"{name}: {len(random)} tensors, {size} elements")


def torchvision_model(make, flags):
    theirs = make()
    theirs.load_state_dict(random_bits(theirs.state_dict()))
    torch.save(theirs.state_dict(), FOLDER / "theirs.pth")
    ours = f"{FOLDER}/ours.safetensors"
    convert(*flags, f"--in={FOLDER}/theirs.pth", "--in_names=torchvision", f"--out={ours}")
    convert(*flags, f"--in={ours}", "--out_names=torchvision", f"--out={FOLDER}/back.pth")
    back = read("back.pth")
    assert list(back) == list(theirs.state_dict())
    same(theirs.state_dict(), back)
    again = make()
    again.load_state_dict(back, strict=True)
    same(theirs.state_dict(), again.state_dict())
    print(f"torchvision's {flags[0]}: {len(back)} names, in its order")


def kinds():
    both = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
        torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ]  # fmt: skip
    torch_only = [torch.complex128, torch.complex32]

    def tensors(dtypes):
        empty = {str(each): torch.empty(3, 5, dtype=each) for each in dtypes}
        result = random_bits(empty)
        if "torch.bool" in result:
            result["torch.bool"] = torch.rand(3, 5) < 0.5
        result["scalar"] = torch.tensor(7)
        result["empty"] = torch.empty(0, 4)
        result["ünï \"q\""] = torch.ones(1)
        return result

    values = tensors(both)
    torch.save(values, FOLDER / "py.pt")
    safetensors.torch.save_file(values, FOLDER / "py.safetensors", {"key": "välue"})
    convert(f"--in={FOLDER}/py.pt", f"--out={FOLDER}/cc.safetensors")
    same(values, read("cc.safetensors"))
    convert(f"--in={FOLDER}/py.safetensors", f"--out={FOLDER}/cc.pt")
    same(values, read("cc.pt"))
    convert(f"--in={FOLDER}/py.safetensors", f"--out={FOLDER}/cc.safetensors")
    with safetensors.safe_open(FOLDER / "cc.safetensors", "pt") as file:
        assert file.metadata() == {"key": "välue"}, file.metadata()

    values = tensors(both + torch_only)
    base = torch.arange(24.0)
    values["base"] = base
    values["part"] = base[4:16].view(3, 4).t()
    values["steps"] = base[1::2]
    values["expanded"] = base[3:4].expand(2, 3)
    for protocol in (2, 3, 4, 5):
        for wrapped in (values, {"epoch": 3, "state_dict": values}, {"model": values}):
            torch.save(wrapped, FOLDER / "py.pt", pickle_protocol=protocol)
            convert(f"--in={FOLDER}/py.pt", f"--out={FOLDER}/cc.pt")
            for back in (read("cc.pt"), torch.load(FOLDER / "cc.pt", mmap=True)):
                same(values, back)
                assert list(back) == list(values)
                for name, tensor in values.items():
                    assert back[name].stride() == tensor.stride(), name
                assert (
                    back["base"].untyped_storage().data_ptr()
                    == back["part"].untyped_storage().data_ptr()
                )
    print(f"{len(values)} dtypes and layouts, in 4 protocols and 3 kinds of dicts")


def main():
    torch.manual_seed(1)
    kinds()
    for name, flags in MODELS.items():
        model(name, flags)
    try:
        import torchvision.models
    except ImportError:
        print("no torchvision: its names are not compared")
        return
    torchvision_model(
        lambda: torchvision.models.resnet101(), ["--model=resnet101"]
    )
    torchvision_model(
        lambda: torchvision.models.resnet50(num_classes=10),
        ["--model=resnet50", "--classes=10"],
    )


main()
