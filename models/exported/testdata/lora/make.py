#!/usr/bin/env python3
"""Writes small models of transformers with adapters of Python's PEFT:

    python3 models/exported/testdata/lora/make.py models/exported/testdata/lora

Needs torch, transformers, peft and safetensors. For each NAME of MODELS it writes the
program NAME.pt2 without adapters, a folder NAME_adapter that PEFT has saved, and
NAME.safetensors with what PEFT's model computes on one thread:

    input.0         tokens
    weight.0        the factor of the logits in the loss (logits * weight.0).sum()
    output.0        the logits with the adapter, in training
    grad.NAME       the gradient of A or B, by the name in the adapter's file
    dropped.0       the logits with a dropout of 0.25, after torch.manual_seed(7)
    base.0          the logits without the adapter
    merged.0        the logits after merge_and_unload()
    weights.NAME    a weight that the merge has changed
    drawn.NAME      A and B of a new adapter, after torch.manual_seed(5)

It also writes pair.pt2, a program with a module "0" that has two weights, and branch.pt2,
whose module "mix" is called in a branch, too.

The metadata name the machine, because the bits depend on the CPU.
"""
import importlib.util
import os
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
# With a single head of keys, gradients of the model and of its exported program differ in
# the last bits, in Python too.
SIZES = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16,
         "use_cache": False, "pad_token_id": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
# The class, the targets and other options of the adapter.
MODELS = {
    "llama": ("LlamaForCausalLM", ["q_proj", "v_proj", "down_proj"], {}),
    "gpt2": ("GPT2LMHeadModel", ["c_attn", "mlp.c_proj"],
             {"fan_in_fan_out": True, "use_rslora": True}),
    "repeated": ("Repeated", ["mix", "head"], {}),
}


class Repeated(torch.nn.Module):
    """Calls one module three times, and multiplies by the weight of its embedding."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(13, 16)
        self.mix = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(3):
            x = x + torch.tanh(self.mix(x))
        return transformers.modeling_outputs.CausalLMOutput(logits=self.head(x))


class Pair(torch.nn.Module):
    """Multiplies by two weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))

    def forward(self, x):
        linear = torch.nn.functional.linear
        return linear(torch.tanh(linear(x, self.first)), self.second)


class Branch(torch.nn.Module):
    """Calls one module twice, the second time in a branch."""

    def __init__(self):
        super().__init__()
        self.mix, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        y = torch.tanh(self.mix(x))
        y = torch.cond(y.sum() > 0, lambda y: torch.tanh(self.mix(y)), lambda y: y * 2, (y,))
        return self.last(y)


def program_tools():
    """The functions that write the programs of models/exported."""
    path = os.path.join(HERE, "../make.py")
    spec = importlib.util.spec_from_file_location("make_programs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.shorten_paths = remove_traces  # to keep the files small
    return module


def remove_traces(program):
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)


def make_model(kind):
    torch.manual_seed(1)
    if kind == "Repeated":
        return Repeated().train()
    model = getattr(transformers, kind)
    return model(model.config_class(**SIZES)).train()


def adapted(kind, targets, seed=None, **options):
    """A model with an adapter: a new one, or one whose values are all random."""
    model = make_model(kind)
    torch.manual_seed(5 if seed is None else seed)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets,
                             init_lora_weights=seed is None, **options)
    return peft.get_peft_model(model, config).train()


def main(folder):
    tools = program_tools()
    tools.write_program(torch.nn.Sequential(Pair()), (torch.ones(2, 4),), {},
                        os.path.join(folder, "pair.pt2"))
    tools.write_program(Branch(), (torch.ones(2, 4),), {}, os.path.join(folder, "branch.pt2"))
    for name, (kind, targets, options) in MODELS.items():
        path = os.path.join(folder, name)
        tokens = torch.randint(0, 13, (4, 6), generator=torch.Generator().manual_seed(2))
        tools.write_program(make_model(kind), (tokens,), {}, path + ".pt2")
        found = {"input.0": tokens, "base.0": make_model(kind)(tokens).logits.detach()}

        new = peft.get_peft_model_state_dict(adapted(kind, targets, **options))
        found |= {f"drawn.{k}": v for k, v in new.items()}

        model = adapted(kind, targets, seed=3, **options)
        logits = model(tokens).logits
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
        (logits * weight).sum().backward()
        found |= {"output.0": logits.detach(), "weight.0": weight}
        found |= {"grad." + k.replace(".default", ""): v.grad
                  for k, v in model.named_parameters() if v.requires_grad}

        shutil.rmtree(path + "_adapter", ignore_errors=True)
        model.save_pretrained(path + "_adapter")
        os.remove(os.path.join(path + "_adapter", "README.md"))

        dropping = adapted(kind, targets, seed=3, lora_dropout=0.25, **options)
        torch.manual_seed(7)
        found["dropped.0"] = dropping(tokens).logits.detach()

        before = make_model(kind).state_dict()
        merged = model.merge_and_unload()
        found["merged.0"] = merged(tokens).logits.detach()
        found |= {f"weights.{k}": v for k, v in merged.state_dict().items()
                  if not torch.equal(v, before[k])}
        save_file({k: v.detach().contiguous().clone() for k, v in found.items()},
                  path + ".safetensors",
                  {"torch": torch.__version__.split("+")[0], "cpu": tools.cpu_name(),
                   "capability": torch.backends.cpu.get_cpu_capability()})
        print(name, sorted(k for k in found if k.startswith("weights.")))


if __name__ == "__main__":
    main(sys.argv[1])
