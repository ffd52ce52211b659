"""Trains adapters with gpipe and with Python's PEFT, and compares them.

    lora_python_check.py FOLDER_OF_PROGRAMS EMPTY_FOLDER [NAME...]

Each model has 4 layers of width 256 and random weights. It is exported as it is, so that
names are those of Hugging Face. From the same initial adapter, Python trains the model
with PEFT for 30 steps of SGD with momentum in 4 micro-batches, and lora_steps trains the
program: in one piece and in 2 and 4 partitions, with fill-drain, 1F1B and ZB-H1, with
recomputing, and in 2 and 4 processes. Compared are all losses and the final adapters.

The peak memory of each process must be within 3 % of the dry run of tools:exported, with
two rows per micro-batch. Activations that a process has received early are not in the dry
run, and weigh more in models as small as these.

Then the adapter of lora_steps is loaded by PEFT, and the merged weights, also those of
convert_weights --merge_lora, by the model of transformers. Outputs must be equal.

All bits must be equal.
"""

import math
import pathlib
import re
import subprocess
import sys

import peft
import safetensors.torch
import torch
import transformers

BIN, FOLDER = (pathlib.Path(each) for each in sys.argv[1:3])
STEPS, ROWS, TOKENS, CHUNKS, VOCABULARY, LR = 30, 8, 16, 4, 128, 0.1
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512,
         "head_dim": 64, "max_position_embeddings": 64, "use_cache": False,
         "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": None,
         "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0, "resid_pdrop": 0.0,
         "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# The class, other sizes, and the targets.
MODELS = {
    "llama": ("LlamaForCausalLM", {}, ["q_proj", "v_proj"]),
    "llama_grouped": ("LlamaForCausalLM", {"num_key_value_heads": 2}, ["q_proj", "v_proj"]),
    "llama_bfloat16": ("LlamaForCausalLM", {}, ["q_proj", "v_proj"]),
    "qwen3": ("Qwen3ForCausalLM", {}, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "gpt2": ("GPT2LMHeadModel", {}, ["c_attn", "c_proj"]),
    "mixtral": ("MixtralForCausalLM", {}, ["q_proj", "v_proj"]),
}
# How far the peak memory of a process may be from the dry run.
MEMORY = 0.03
SETTINGS = [(partitions, schedule, "never")
            for partitions in (1, 2, 4) for schedule in ("fill-drain", "1f1b", "zb-h1")
            if partitions > 1 or schedule == "1f1b"]
SETTINGS += [(2, "1f1b", "always"), (4, "zb-h1", "always")]
PROCESSES = [(processes, schedule) for processes in (2, 4)
             for schedule in ("fill-drain", "1f1b", "zb-h1")]


def make_model(name):
    kind, sizes, _ = MODELS[name]
    model = getattr(transformers, kind)
    torch.manual_seed(1)
    config = model.config_class(**(SIZES | sizes))
    made = model(config).train()
    return made.to(torch.bfloat16) if name.endswith("bfloat16") else made


def adapted(name):
    torch.manual_seed(2)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=MODELS[name][2],
                             fan_in_fan_out=name == "gpt2")
    return peft.get_peft_model(make_model(name), config).train()


def train(model, data):
    """Returns the losses of the micro-batches of all steps."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LR, momentum=0.9, foreach=False)
    losses = []
    for tokens, target in zip(data["input"], data["target"]):
        optimizer.zero_grad()
        losses.append([])
        for x, y in zip(tokens.chunk(CHUNKS), target.chunk(CHUNKS)):
            logits = model(x).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            (loss / CHUNKS).backward()
            losses[-1].append(loss.item())
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def read_losses(folder):
    lines = (folder / "losses.txt").read_text().splitlines()
    return torch.tensor([[float.fromhex(x) for x in line.split()] for line in lines],
                        dtype=torch.float64)


def adapter_in(folder):
    return safetensors.torch.load_file(folder / "adapter_model.safetensors")


def distance(found, expected):
    """The largest difference of two dicts of tensors, relative to the largest number of
    each tensor. 0 for equal bits, inf where one of both is NaN."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    largest = 0.0
    for name, value in expected.items():
        if not torch.equal(found[name], value):
            apart = (found[name].double() - value.double()).abs().max()
            apart = (apart / value.double().abs().max()).nan_to_num(nan=math.inf)
            largest = max(largest, apart.item())
    return largest


def same_model(model, weights):
    """Loads weights by transformers' names."""
    kept = {k: v for k, v in weights.items() if k in model.state_dict()}
    missing, _ = model.load_state_dict(kept, strict=False)
    assert not missing, missing
    return model.eval()


def dry_run(folder, processes, targets):
    """The layers and the bytes of each device, as tools:exported predicts them."""
    text = subprocess.run(
        [BIN / "exported", f"--in={folder}/model.pt2", f"--partitions={processes}",
         f"--batch={2 * CHUNKS}", f"--chunks={CHUNKS}", "--checkpoint=never", "--lora_rank=8",
         f"--lora_targets={','.join(targets)}", "--param_scale=3"],
        check=True, capture_output=True, text=True).stdout
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d+ ", line)]
    return [row[1] for row in rows], [float(row[-2]) * units[row[-1]] for row in rows]


def check_memory(folder, processes, targets, flags):
    """The largest difference of a process's peak from the dry run, as a part of it."""
    layers, predicted = dry_run(folder, processes, targets)
    data = safetensors.torch.load_file(folder / "data.safetensors")
    safetensors.torch.save_file({k: v[:2, :2 * CHUNKS].contiguous() for k, v in data.items()},
                                folder / "little.safetensors")
    out = folder / f"memory-{processes}"
    subprocess.run([BIN / "launch", f"--nproc={processes}", "--", BIN / "lora_steps",
                    *flags(out, "1f1b"), "--distributed", f"--balance={','.join(layers)}",
                    f"--data={folder}/little.safetensors"],
                   check=True, stdout=subprocess.DEVNULL)
    measured = [int((out / f"peak-{rank}.txt").read_text()) for rank in range(processes)]
    print(f"  peak bytes of {processes} processes: {measured}, dry run: "
          f"{[round(each) for each in predicted]}", flush=True)
    return max(abs(m / p - 1) for m, p in zip(measured, predicted))


def check(name):
    folder = FOLDER / name
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (STEPS, ROWS, TOKENS + 1), generator=generator)
    data = {"input": tokens[..., :-1].contiguous(), "target": tokens[..., 1:].contiguous()}
    safetensors.torch.save_file(data, folder / "data.safetensors")
    example = (data["input"][0],)
    program = torch.export.export(
        make_model(name), example, strict=False,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},))
    torch.export.save(program, folder / "model.pt2")
    model = adapted(name)
    model.save_pretrained(folder / "begin")
    losses = train(model, data)
    model.save_pretrained(folder / "python")
    python = {"losses": losses, **adapter_in(folder / "python")}

    worst = 0.0

    def compare(out, title):
        nonlocal worst
        found = distance({"losses": read_losses(out), **adapter_in(out / "adapter")}, python)
        worst = max(worst, found)
        print(f"  {title}: {'equal bits' if found == 0 else f'differs by {found:.1e}'}",
              flush=True)

    def flags(out, schedule, checkpoint="never"):
        return [f"--in={folder}/model.pt2", f"--adapter={folder}/begin", f"--lr={LR}",
                f"--data={folder}/data.safetensors", f"--out={out}", f"--chunks={CHUNKS}",
                f"--schedule={schedule}", f"--checkpoint={checkpoint}"]

    print(f"{name}: losses from {losses[0].mean():.4f} to {losses[-1].mean():.4f}", flush=True)
    for partitions, schedule, checkpoint in SETTINGS:
        out = folder / f"{partitions}-{schedule}-{checkpoint}"
        subprocess.run([BIN / "lora_steps", *flags(out, schedule, checkpoint),
                        f"--partitions={partitions}"], check=True)
        compare(out, f"{partitions} partitions, {schedule}, recompute {checkpoint}")
    for processes, schedule in PROCESSES:
        out = folder / f"{processes}-processes-{schedule}"
        subprocess.run([BIN / "launch", f"--nproc={processes}", "--", BIN / "lora_steps",
                        *flags(out, schedule), "--distributed"], check=True,
                       stdout=subprocess.DEVNULL)
        compare(out, f"{processes} processes, {schedule}")

    memory = max(check_memory(folder, n, MODELS[name][2], flags) for n in (1, 2, 4))
    print(f"  peak memory within {memory:.1%} of the dry run", flush=True)

    # Our adapter in PEFT, and the merged weights in transformers.
    ours = folder / "1-1f1b-never"
    logits = safetensors.torch.load_file(ours / "logits.safetensors")
    loaded = peft.PeftModel.from_pretrained(make_model(name), ours / "adapter").eval()
    own_weights = make_model(name).state_dict()
    safetensors.torch.save_file({k: v.clone() for k, v in own_weights.items()},
                                folder / "base.safetensors")
    subprocess.run([BIN / "convert_weights", f"--in={folder}/base.safetensors",
                    f"--merge_lora={ours}/adapter", f"--out={folder}/converted.safetensors"],
                   check=True)
    with torch.no_grad():
        expected = loaded(data["input"][0]).logits
        merged = loaded.merge_and_unload().eval()
        results = {
            "our adapter in PEFT": (logits["adapted"], expected),
            "our merged program beside PEFT's": (logits["merged"],
                                                 merged(data["input"][0]).logits),
            "our merged weights in transformers": (
                same_model(make_model(name), safetensors.torch.load_file(
                    ours / "merged.safetensors"))(data["input"][0]).logits,
                merged(data["input"][0]).logits),
            "weights of --merge_lora in transformers": (
                same_model(make_model(name), safetensors.torch.load_file(
                    folder / "converted.safetensors"))(data["input"][0]).logits,
                merged(data["input"][0]).logits),
        }
    for title, (found, wanted) in results.items():
        apart = distance({"logits": found}, {"logits": wanted})
        worst = max(worst, apart)
        print(f"  {title}: {'equal bits' if apart == 0 else f'differs by {apart:.1e}'}")
    return worst == 0 and memory <= MEMORY


def main():
    torch.set_num_threads(1)
    names = sys.argv[3:] or list(MODELS)
    wrong = [name for name in names if not check(name)]
    print("wrong: " + ", ".join(wrong) if wrong else "all agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
