"""Exchanges the weights of models of transformers with gpipe, and compares their bits.

    hugging_face_python_check.py EXPORTED CONVERT_WEIGHTS TRAIN EMPTY_FOLDER [MODEL...]

The first three are the programs //tools:exported, //tools:convert_weights and
//examples:train. For each model, with random weights and 4 layers of width 256:
- Python saves one model in shards, and exports a second one with other weights. EXPORTED
  loads the folder into the exported program, runs a training step in one piece and in 2
  and 4 partitions, and finds the bits that Python computes with the model of the folder.
- TRAIN loads the folder, takes a step with a learning rate that float32 rounds to 0, and saves
  the weights. from_pretrained() reads them, and the model computes the bits of the first.
  CONVERT_WEIGHTS copies that folder to one file and back to shards, with the same result.
"""

import pathlib
import subprocess
import sys

import torch
import transformers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import export_examples as EXAMPLES  # of tools/

EXPORTED, CONVERT, TRAIN = sys.argv[1:4]
FOLDER = pathlib.Path(sys.argv[4])
VOCABULARY, TOKENS, ROWS = 512, 32, 8

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2 * TOKENS, "use_cache": False, "pad_token_id": None,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

# The class, and more options of its configuration.
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama_tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama_bfloat16": ("LlamaForCausalLM", {"dtype": torch.bfloat16}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 64}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {
        "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256}),
}  # fmt: skip


def run(*command):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make(name, seed):
    torch.manual_seed(seed)
    kind = getattr(transformers, MODELS[name][0])
    config = kind.config_class(**(SIZES | MODELS[name][1]))
    model = kind._from_config(config, dtype=config.dtype or torch.float32)
    return EXAMPLES.without_randomness(model).train()


def logits(model, ids):
    with torch.no_grad():
        return model.train()(ids, use_cache=False).logits


def expect_same(folder, first, expected, ids):
    """Expects that from_pretrained() reads the model `first`."""
    first.config.save_pretrained(folder)
    model, loading = type(first).from_pretrained(folder, output_loading_info=True)
    found = {key: value for key, value in loading.items() if value}
    assert not found, found
    found = logits(EXAMPLES.without_randomness(model), ids)
    assert torch.equal(found, expected), (found - expected).abs().max()


def check(name):
    folder = FOLDER / name
    first, second = make(name, 1), make(name, 2)
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS))
    expected = logits(first, ids)
    first.save_pretrained(folder / "given", max_shard_size="2MB")
    shards = len(list((folder / "given").glob("*.safetensors")))
    size = sum(each.stat().st_size for each in (folder / "given").glob("*.safetensors"))

    wrapped = EXAMPLES.one_output(second, ("input_ids",), "logits").train()
    rows = ({0: torch.export.Dim("batch", min=1, max=4096)},)
    program = torch.export.export(wrapped, (ids,), dynamic_shapes=rows, strict=False)
    torch.export.save(program, folder / "model.pt2")
    second.load_state_dict(first.state_dict())
    program = torch.export.export(wrapped, (ids,), dynamic_shapes=rows, strict=False)
    EXAMPLES.save_step(wrapped, program, (ids,), folder / "model.pt")
    compared = run(EXPORTED, f"--in={folder}/model.pt2", f"--weights={folder}/given",
                   f"--compare={folder}/model.pt", "--tolerance=1e-6")

    run(TRAIN, f"--model={folder}/model.pt2", f"--weights={folder}/given", "--lr=1e-300",
        "--optimizer=sgd", "--momentum=0", "--weight_decay=0", "--steps=1", f"--length={TOKENS}",
        f"--batch={ROWS}", "--eval_every=-1", f"--save_weights={folder}/saved",
        "--shard_size=3000000")
    expect_same(folder / "saved", first, expected, ids)
    run(CONVERT, f"--in={folder}/saved", f"--out={folder}/one.safetensors")
    run(CONVERT, f"--in={folder}/one.safetensors", f"--out={folder}/copy/",
        "--shard_size=1500000")
    expect_same(folder / "copy", first, expected, ids)
    print(f"{name}: {size / 1e6:.1f} MB in {shards} files; saved in "
          f"{len(list((folder / 'saved').glob('*.safetensors')))} and "
          f"{len(list((folder / 'copy').glob('*.safetensors')))} files, with equal outputs")
    print("".join(f"  {line}\n" for line in compared.splitlines()), end="", flush=True)


def main():
    torch.set_num_threads(1)  # more threads add up in another order
    for name in sys.argv[5:] or MODELS:
        check(name)


main()
