#!/usr/bin/env python3
"""Compares the tokens of examples:generate with those of transformers, and measures them.

    ./bazelw build //examples:generate //tools:launch
    python3 tools/python_checks/generate_check.py --out=/tmp/generated
    python3 tools/python_checks/generate_check.py --out=/tmp/generated --models=mixtral
    python3 tools/python_checks/generate_check.py --out=/tmp/generated --models=llama,gpt2 --speed

Makes models of 4 layers from their configurations, with random weights, and exports each
of them for a window of tokens, and for one token with a static cache. Each prompt is
continued by 64 tokens, the most likely ones. Prints whether they are those of
transformers' generate(), in 1 and 2 partitions, and in 2 processes. With --speed prints
tokens per second by sequences in flight instead.

A run of a window costs most, and in a mixture of experts most of all. --tokens makes the
continuation shorter.

Needs torch and transformers, but no network.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

import torch
import transformers
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "bazel-bin"))
GENERATE = str(BIN / "examples/generate")
LAUNCH = [str(BIN / "tools/launch"), "--nproc=2", "--"]
# The class, and more options of its configuration.
MODELS = {
    "llama": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "qwen3": ("Qwen3ForCausalLM", {"num_key_value_heads": 4}),
    "mixtral": ("MixtralForCausalLM", {"num_key_value_heads": 4, "num_local_experts": 4,
                                       "num_experts_per_tok": 2}),
}


class Window(torch.nn.Module):
    """A model that returns its logits alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def make_model(name, width):
    """A model of 4 layers with random weights."""
    kind, more = MODELS[name]
    heads = 8
    config = getattr(transformers, kind).config_class(
        vocab_size=512, num_hidden_layers=4, hidden_size=width, intermediate_size=2 * width,
        num_attention_heads=heads, head_dim=width // heads,
        max_position_embeddings=256, pad_token_id=None, bos_token_id=0, eos_token_id=0, **more)
    return getattr(transformers, kind)(config)


def export(model, path):
    """Writes PATH-window.pt2 and PATH-cache.pt2."""
    rows, tokens = torch.export.Dim("rows"), torch.export.Dim("tokens", max=256)
    program = torch.export.export(
        Window(model), (torch.zeros(2, 16, dtype=torch.int64),),
        dynamic_shapes=({0: rows, 1: tokens},), strict=False)
    torch.export.save(program, path + "-window.pt2")
    model.generation_config.cache_implementation = "static"
    step = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=128)
    with torch.no_grad():
        program = torch.export.export(
            step, (), {"input_ids": torch.tensor([[0]]), "cache_position": torch.tensor([0])},
            strict=False)
    torch.export.save(program, path + "-cache.pt2")
    model.generation_config.cache_implementation = None


def make(name, flags):
    """Exports a model, and returns prompts with the tokens that follow them in Python."""
    torch.manual_seed(0)
    model = make_model(name, flags.width).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 4  # else the same token follows again and again
    export(model, f"{flags.out}/{name}")
    prompts = [[5, 17, 200, 44], [3], list(range(100, 120)), [511, 0]]
    return {" ".join(map(str, prompt)):
            model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=flags.tokens,
                           attention_mask=torch.ones(1, len(prompt)), eos_token_id=None,
                           pad_token_id=0)[0].tolist()
            for prompt in prompts}


def generate(path, prompts, tokens, *flags, before=()):
    """Returns the lines of examples:generate, and the tokens per second."""
    done = subprocess.run(
        [*before, GENERATE, "--model=" + path, "--prompt_tokens=" + ";".join(prompts),
         f"--max_tokens={tokens}", "--devices=cpu,cpu", *flags],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"generate_check: {done.stderr}")
    # The launcher writes the rank before each line.
    lines = [[int(each) for each in re.sub(r"^\[0\] ", "", line).split()]
             for line in done.stdout.splitlines()]
    speed = re.search(r"([\d.]+) per second", done.stderr + done.stdout)
    return lines, float(speed.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="a folder for the exported models")
    parser.add_argument("--width", type=int, default=256, help="of the models")
    parser.add_argument("--tokens", type=int, default=64, help="that follow each prompt")
    parser.add_argument("--models", default=",".join(MODELS), help="a part of this list")
    parser.add_argument("--speed", action="store_true", help="measure tokens per second")
    flags = parser.parse_args()
    os.makedirs(flags.out, exist_ok=True)
    for name in flags.models.split(","):
        expected = make(name, flags)
        for form in ("window", "cache"):
            path = f"{flags.out}/{name}-{form}.pt2"
            if flags.speed:
                for partitions in (1, 2):
                    # The fastest of three runs in turn, of 8 sequences each.
                    speeds = {n: 0 for n in (1, 2, 4, 8)}
                    for n in list(speeds) * 3:
                        speeds[n] = max(speeds[n], generate(
                            path, list(expected), flags.tokens, "--samples=2", "--threads=1",
                            f"--partitions={partitions}", f"--in_flight={n}")[1])
                    print(f"| {name} | {form} | {partitions} |",
                          " | ".join(f"{each:.0f}" for each in speeds.values()), "|", flush=True)
                continue
            for text, before, more in (("1 partition", (), ["--partitions=1"]),
                                       ("2 partitions", (), ["--partitions=2"]),
                                       ("2 processes", LAUNCH, ["--distributed"])):
                lines, _ = generate(path, list(expected), flags.tokens, *more, before=before)
                equal = sum(a == b for a, b in zip(lines, expected.values()))
                print(f"{name}, {form}, {text}: {equal} of {len(expected)} sequences of {flags.tokens} "
                      "tokens are equal", flush=True)


if __name__ == "__main__":
    main()
