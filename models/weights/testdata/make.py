#!/usr/bin/env python3
"""Writes the folder of the tests of load_hugging_face():

    python3 models/weights/testdata/make.py models/weights/testdata

Needs torch, transformers and safetensors. Writes for a small Llama with tied embeddings:

    llama/              what save_pretrained() writes, in several files, without the
                        configurations
    llama.pt2           the exported program of the same configuration, with other weights.
                        Its names have the prefix "model.", that of a module around it
    llama.safetensors   "input", and the "output" of the program with the weights of llama/
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def llama(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        pad_token_id=None, tie_word_embeddings=True))


def main():
    folder = pathlib.Path(sys.argv[1])
    model = llama(1)
    model.save_pretrained(folder / "llama", max_shard_size="5KB")
    for config in (folder / "llama").glob("*config.json"):
        config.unlink()
    ids = torch.randint(0, 48, (4, 8))
    save_file({"input": ids, "output": model.train()(ids, use_cache=False).logits.detach()},
              folder / "llama.safetensors")
    program = torch.export.export(
        Logits(llama(2)).train(), (ids,),
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},), strict=False)
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            for name in ("stack_trace", "torch_fn"):  # for small files
                node.meta.pop(name, None)
    torch.export.save(program, folder / "llama.pt2")


main()
