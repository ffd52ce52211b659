#!/usr/bin/env python3
"""Exports models of torch, torchvision, timm and transformers, with random weights.

    tools/export_examples.py --list
    tools/export_examples.py --out=/tmp/models resnet18 llama
    tools/export_examples.py --out=/tmp/models --image=64 --layers=6    # all
    tools/export_examples.py --out=/tmp/models --meta --width=8192 --layers=80 llama
    tools/export_examples.py --out=/tmp/models --check my_model.py:make

Writes NAME.pt2 for gpipe::load_exported(), and NAME.pt with an input and what Python
computes with it, which //tools:exported --compare=NAME.pt reads. Needs torch, and
torchvision, timm or transformers, but no network: models are made from their
configurations.

Dimension 0 of each input varies. Models are in train mode, without dropout and stochastic
depth, so that micro-batches compute the same values in any order. NAME.pt has the result
of one step on one thread with the loss sum over i of (output.i * weight.i).sum():

    input.i, output.i    the inputs and outputs, in the order of the signature
    weight.i             the factor of an output in the loss
    grad.NAME            the gradient of a parameter
    buffer.NAME          a buffer, after the step
    eval.i               an output of the model in eval mode, before the step

It also has the results of the same rows in micro-batches: all forwards, then all
backwards, in order. micro.count is their number, a scalar, and micro.output.i,
micro.grad.NAME, micro.buffer.NAME and micro.eval.i are as above.

--check compares the program with the model itself: outputs, gradients and buffers of a
step in train mode, and the outputs in eval mode. torch.export loses some gradients, and
gpipe's eval() cannot follow some models (docs/exported.md). It prints each tensor that
differs. The program then ends with status 1.

A name FILE.py:FUNCTION is a model of your own. FUNCTION() returns a module and the tuple
of its inputs, with at least 2 rows. The module keeps its dropout, which draws other
numbers in the micro-batches of a pipeline than in those of Python.

With --meta models are made and exported on the meta device: without weights, memory for
them, and NAME.pt. gpipe::load_exported() reads such a file under a gpipe::MetaGuard, and
//tools:exported --partitions=N prints the memory that training takes.
"""
import argparse
import copy
import importlib
import importlib.util
import inspect
import os
import sys
import time


def load(module):
    """Imports a module, or ends the program with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        sys.exit(f"export_examples: cannot import {module} ({error}); run: "
                 f"{sys.executable} -m pip install {module.split('.')[0]}")


def one_output(model, names, output):
    """Returns a module with the model as its child, whose forward() takes the arguments
    `names` of the model, and returns the `output` of its result."""
    torch = load("torch")

    class OneOutput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(names, inputs)))[output]

    OneOutput.forward.__signature__ = inspect.Signature([
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("self", *names)])
    return OneOutput()


# Plain torch. Classes are inside of functions, since torch is imported late.

def lstm(flags):
    torch = load("torch")

    class Lstm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(flags.vocabulary, flags.width)
            self.lstm = torch.nn.LSTM(flags.width, flags.width, flags.layers, batch_first=True)
            self.head = torch.nn.Linear(flags.width, flags.vocabulary)

        def forward(self, ids):
            return self.head(self.lstm(self.embed(ids))[0])

    return Lstm(), (tokens(flags),)


def unet(flags):
    """Returns a U-Net with skip tensors at three sizes of the image."""
    torch = load("torch")
    nn, width = torch.nn, flags.width // 4

    def convs(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after),
                             nn.ReLU(), nn.Conv2d(after, after, 3, padding=1),
                             nn.BatchNorm2d(after), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [width << k for k in range(4)]
            self.stem = convs(3, width)
            self.down = nn.ModuleList(convs(a, b) for a, b in zip(widths, widths[1:]))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2)
                                      for a, b in zip(widths, widths[1:]))
            self.up = nn.ModuleList(convs(2 * a, a) for a in widths[:-1])
            self.head = nn.Conv2d(width, 1, 1)

        def forward(self, x):
            skips = [self.stem(x)]
            for down in self.down:
                skips.append(down(nn.functional.max_pool2d(skips[-1], 2)))
            x = skips.pop()
            for grow, up in zip(reversed(self.grow), reversed(self.up)):
                x = up(torch.cat([grow(x), skips.pop()], dim=1))
            return self.head(x)

    return UNet(), (torch.randn(flags.batch, 3, flags.image, flags.image),)


def diffusion_unet(flags):
    """Returns a U-Net of an image and a time: each block adds an embedding of the time."""
    torch = load("torch")
    nn, width = torch.nn, flags.width

    class Block(nn.Module):
        def __init__(self, before, after):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
            self.conv1 = nn.Conv2d(before, after, 3, padding=1)
            self.conv2 = nn.Conv2d(after, after, 3, padding=1)
            self.time, self.skip = nn.Linear(4 * width, after), nn.Conv2d(before, after, 1)

        def forward(self, x, time):
            y = self.conv1(nn.functional.silu(self.norm1(x)))
            y = y + self.time(nn.functional.silu(time))[:, :, None, None]
            return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(y)))

    class Attention(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm = nn.GroupNorm(8, channels)
            self.qkv = nn.Conv2d(channels, 3 * channels, 1)
            self.out = nn.Conv2d(channels, channels, 1)

        def forward(self, x):
            q, k, v = (y.flatten(2).transpose(1, 2).unsqueeze(1)
                       for y in self.qkv(self.norm(x)).chunk(3, dim=1))
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return x + self.out(y.squeeze(1).transpose(1, 2).reshape(x.shape))

    class DiffusionUNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(),
                                       nn.Linear(4 * width, 4 * width))
            self.stem, self.down1 = nn.Conv2d(3, width, 3, padding=1), Block(width, width)
            self.shrink1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
            self.down2, self.attend2 = Block(width, 2 * width), Attention(2 * width)
            self.shrink2 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
            self.middle1, self.attend = Block(2 * width, 2 * width), Attention(2 * width)
            self.middle2 = Block(2 * width, 2 * width)
            self.up2, self.up1 = Block(4 * width, width), Block(2 * width, width)
            self.norm, self.head = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x, time):
            rates = torch.exp(torch.arange(width // 2, device=x.device) * (-18.0 / width))
            angles = time[:, None] * rates
            time = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
            first = self.down1(self.stem(x), time)
            second = self.attend2(self.down2(self.shrink1(first), time))
            x = self.middle1(self.shrink2(second), time)
            x = self.middle2(self.attend(x), time)
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = self.up2(torch.cat([x, second], dim=1), time)
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = self.up1(torch.cat([x, first], dim=1), time)
            return self.head(nn.functional.silu(self.norm(x)))

    image = torch.randn(flags.batch, 3, flags.image // 2, flags.image // 2)
    return DiffusionUNet(), (image, torch.rand(flags.batch) * 1000)


# Inputs, by the names of the models' arguments.

def tokens(flags):
    return load("torch").randint(3, flags.vocabulary, (flags.batch, flags.tokens))


def padding(flags):
    """Returns a mask of texts of different lengths."""
    torch = load("torch")
    lengths = torch.arange(flags.batch) % flags.tokens + 1
    return (torch.arange(flags.tokens)[None, :] < lengths[:, None]).long()


def images(flags):
    return load("torch").randn(flags.batch, 3, flags.image, flags.image)


INPUTS = {
    "x": images,
    "pixel_values": images,
    "noise": lambda flags: load("torch").rand(flags.batch, (flags.image // 16) ** 2),
    "input_ids": tokens,
    "decoder_input_ids": tokens,
    "attention_mask": padding,
    "input_features": lambda flags: load("torch").randn(flags.batch, 16, 2 * flags.tokens),
    "input_values": lambda flags: load("torch").randn(flags.batch, 160 * flags.tokens),
}


# Models of packages: functions of the flags that return a model and its inputs.

def of_torchvision(flags, name, options):
    model = getattr(load("torchvision.models"), name)(weights=None, **options)
    return model, (images(flags),)


def fcn_resnet50(flags):
    model = load("torchvision.models.segmentation").fcn_resnet50(
        weights=None, weights_backbone=None, num_classes=1)
    return one_output(model, ("x",), "out"), (images(flags),)


def of_timm(flags, name, options):
    model = load("timm").create_model(name, num_classes=10, **options)
    return model, (images(flags),)


def of_transformers(flags, kind, names, options, output="logits"):
    """Returns a model of the class `kind`, and inputs with these names."""
    model = getattr(load("transformers"), kind)
    # Most configurations ignore the sizes that they do not have. None leaves one out.
    sizes = {
        "vocab_size": flags.vocabulary, "hidden_size": flags.width,
        "num_hidden_layers": flags.layers, "num_attention_heads": flags.heads,
        "num_key_value_heads": flags.kv_heads, "intermediate_size": flags.feed_forward,
        "max_position_embeddings": 2 * flags.tokens, "image_size": flags.image,
        "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **options}
    config = model.config_class(**{k: v for k, v in sizes.items() if v is not None})
    return one_output(model(config), names, output), tuple(INPUTS[name](flags) for name in names)


def models(flags):
    """Returns the models of each package: functions that return a model and its inputs, by
    name."""
    def make(function, *arguments):
        return lambda: function(flags, *arguments)

    width, layers, heads, inner = flags.width, flags.layers, flags.heads, flags.feed_forward
    size = {"img_size": flags.image}
    vit = size | {"embed_dim": width, "depth": layers, "num_heads": heads}
    timm = {
        "beit_base_patch16_224": vit,
        "cait_xxs24_224": vit,
        "coatnet_nano_rw_224": size,
        "convnext_atto": {},
        "deit3_small_patch16_224": vit,
        "dla34": {},
        "edgenext_xx_small": {},
        "efficientnetv2_rw_t": {},
        "eva02_tiny_patch14_224": vit | {"patch_size": 16},
        "ghostnet_050": {"drop_rate": 0.0},
        "hrnet_w18_small": {},
        "levit_128s": size,
        "maxvit_rmlp_pico_rw_256": size,
        "mixer_s16_224": size,
        "mobilevit_xxs": {},
        "nf_resnet26": {},
        "nfnet_l0": {},
        "poolformer_s12": {},
        "pvt_v2_b0": {},
        "regnety_002": {},
        "repvgg_a0": {},
        "resnetv2_50x1_bit": {},
        "sequencer2d_s": size | {"layers": (1, 1, 1, 1)},
        "swinv2_tiny_window8_256": size | {
            "depths": (2, 2, 2, 2), "embed_dim": width, "num_heads": (2, 4, 8, 16)},
        "twins_pcpvt_small": size,
        "xcit_nano_12_p16_224": size | {"depth": layers},
    }
    ids, mask, pair = ("input_ids",), ("input_ids", "attention_mask"), ("input_ids",
                                                                        "decoder_input_ids")
    pixels, wave = ("pixel_values",), ("input_values",)
    both = {"d_model": width, "encoder_layers": layers, "decoder_layers": layers,
            "encoder_attention_heads": heads, "decoder_attention_heads": heads,
            "encoder_ffn_dim": inner, "decoder_ffn_dim": inner, "decoder_start_token_id": 1}
    speech = {"conv_dim": (width // 2,) * 3, "conv_kernel": (10, 4, 4), "conv_stride": (5, 4, 4),
              "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
              "mask_time_prob": 0.0}
    experts = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
               "moe_intermediate_size": inner // 2}
    transformers = {
        "llama": ("LlamaForCausalLM", ids, {"pad_token_id": None}),
        "gpt2": ("GPT2LMHeadModel", ids, {}),
        "bert": ("BertForMaskedLM", mask, {}),
        "t5": ("T5ForConditionalGeneration", pair, {
            "d_kv": width // heads, "d_ff": inner, "num_decoder_layers": layers,
            "decoder_start_token_id": 0}),
        "mixtral": ("MixtralForCausalLM", ids, experts),
        "whisper": ("WhisperForConditionalGeneration", ("input_features", "decoder_input_ids"),
                    both | {"num_mel_bins": 16, "max_source_positions": flags.tokens,
                            "max_target_positions": 2 * flags.tokens}),
        "albert": ("AlbertForMaskedLM", mask, {"embedding_size": width // 2}),
        "bart": ("BartForConditionalGeneration", pair, both),
        "bloom": ("BloomForCausalLM", mask, {}),
        "clip_text": ("CLIPTextModel", ids, {}, "last_hidden_state"),
        "deberta_v2": ("DebertaV2ForMaskedLM", mask, {
            "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
            "position_buckets": flags.tokens // 2, "share_att_key": True}),
        "distilbert": ("DistilBertForMaskedLM", mask, {"hidden_dim": inner}),
        "electra": ("ElectraForMaskedLM", mask, {"embedding_size": width // 2}),
        "falcon": ("FalconForCausalLM", ids, {"ffn_hidden_size": inner}),
        "fnet": ("FNetForMaskedLM", ids, {}),
        "gemma2": ("Gemma2ForCausalLM", ids, {
            "head_dim": width // heads, "sliding_window": flags.tokens // 2}),
        "gpt_neox": ("GPTNeoXForCausalLM", ids, {}),
        "hubert": ("HubertModel", wave, speech, "last_hidden_state"),
        "llama_padded": ("LlamaForCausalLM", mask, {}),
        "mamba": ("MambaForCausalLM", ids, {"state_size": 8}),
        "mbart": ("MBartForConditionalGeneration", pair, both),
        "mistral": ("MistralForCausalLM", ids, {"sliding_window": flags.tokens // 2}),
        "mobilebert": ("MobileBertForMaskedLM", mask, {
            "embedding_size": width, "intra_bottleneck_size": width // 2,
            "true_hidden_size": width // 2}),
        "olmo2": ("Olmo2ForCausalLM", ids, {}),
        "opt": ("OPTForCausalLM", mask, {"ffn_dim": inner, "word_embed_proj_dim": width}),
        "pegasus": ("PegasusForConditionalGeneration", pair, both),
        "phi3": ("Phi3ForCausalLM", ids, {}),
        "qwen2": ("Qwen2ForCausalLM", ids, {}),
        "qwen3": ("Qwen3ForCausalLM", ids, {"head_dim": width // heads}),
        "qwen3_moe": ("Qwen3MoeForCausalLM", ids, experts | {"head_dim": width // heads}),
        "roberta": ("RobertaForMaskedLM", mask, {}),
        "rwkv": ("RwkvForCausalLM", ids, {"attention_hidden_size": width}),
        "segformer": ("SegformerForSemanticSegmentation", pixels, {
            "hidden_sizes": [width // 2] * 4, "depths": [1] * 4,
            "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": width}),
        "vit_mae": ("ViTMAEForPreTraining", ("pixel_values", "noise"), {
            "decoder_hidden_size": width, "decoder_num_hidden_layers": 2,
            "decoder_num_attention_heads": heads, "decoder_intermediate_size": inner}),
        "wav2vec2": ("Wav2Vec2Model", wave, speech, "last_hidden_state"),
        "xlnet": ("XLNetLMHeadModel", ids, {
            "d_model": width, "n_head": heads, "d_head": width // heads, "d_inner": inner,
            "max_position_embeddings": None}),
    }
    torchvision = {
        "resnet18": {}, "resnet101": {}, "mobilenet_v3_small": {"dropout": 0.0},
        "vit_b_16": {"image_size": flags.image}, "swin_t": {}, "densenet121": {},
    }
    return {
        "torch": {each.__name__: make(each) for each in (lstm, unet, diffusion_unet)},
        "torchvision": {k: make(of_torchvision, k, v) for k, v in torchvision.items()} | {
            "fcn_resnet50": make(fcn_resnet50)},
        "timm": {k: make(of_timm, k, v) for k, v in timm.items()},
        "transformers": {k: make(of_transformers, *v) for k, v in transformers.items()},
    }


def without_randomness(model):
    """Sets every dropout rate of the model to 0: of modules, and of numbers that
    functions read."""
    for module in model.modules():
        kind = type(module).__name__
        if "Dropout" in kind or kind == "StochasticDepth":
            module.p = 0.0
        for owner in (module, getattr(module, "config", None)):
            for name, value in list(vars(owner).items()) if owner is not None else []:
                if isinstance(value, float) and any(part in name for part in (
                        "dropout", "pdrop", "layerdrop", "drop_prob")):
                    setattr(owner, name, 0.0)
    return model


def file_of(name):
    """Returns the file of a model, without its ending."""
    return name.rsplit(":", 1)[-1]


def own_model(name):
    """Returns the function of a name FILE.py:FUNCTION."""
    path, function = name.rsplit(":", 1)
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


def export(name, make, flags):
    """Exports a model. Returns a line of text, and a line for each difference that
    --check finds."""
    torch = load("torch")
    torch.manual_seed(flags.seed)
    with torch.device("meta" if flags.meta else "cpu"):
        model, inputs = make()
    if flags.bfloat16:
        model = model.to(torch.bfloat16)
    model = (model if ".py:" in name else without_randomness(model)).train()
    rows = ({0: torch.export.Dim("batch", min=1, max=4096)},) * len(inputs)
    program = torch.export.export(model, inputs, dynamic_shapes=rows, strict=False)
    path = os.path.join(flags.out, file_of(name))
    torch.export.save(program, path + ".pt2")
    if not flags.meta:
        save_step(model, program, inputs, path + ".pt")
    parameters = sum(p.numel() for p in model.parameters())
    text = f"{parameters / 1e6:.1f} million parameters, {len(program.graph.nodes)} nodes"
    if not flags.check:
        return text, []
    found = check(model, program, inputs)
    return text + ("" if found else ", checked"), found


def listed(outputs):
    """Returns the outputs of a model as a list of tensors."""
    return [y for y in load("torch.utils._pytree").tree_leaves(outputs)
            if isinstance(y, load("torch").Tensor)]


def run_step(module, inputs, count=1):
    """Runs one step in `count` micro-batches. Returns outputs, factors of the loss,
    gradients and buffers by the names of the file. Leaves the module as it was."""
    torch = load("torch")
    buffers = {k: b.clone() for k, b in module.named_buffers()}
    torch.manual_seed(7)
    parts = [listed(module(*rows)) for rows in zip(*(x.tensor_split(count) for x in inputs))]
    outputs = [torch.cat(rows) if count > 1 else rows[0] for rows in zip(*parts)]
    torch.manual_seed(8)
    weights = [torch.randn(y.shape) for y in outputs]
    split = [w.tensor_split(count) if w.dim() else (w,) for w in weights]
    for part, *rows in zip(parts, *split):
        sum((y * w).sum() for y, w in zip(part, rows)).backward()
    found = {f"output.{i}": y.detach() for i, y in enumerate(outputs)}
    found |= {f"weight.{i}": w for i, w in enumerate(weights)}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            found[f"grad.{name}"] = parameter.grad.to_dense().clone()
    for name, buffer in module.named_buffers(remove_duplicate=False):
        found[f"buffer.{name}"] = buffer.clone()
    module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return found


def evaluate(model, inputs, count):
    """Returns the outputs of `count` micro-batches in eval mode by the names of the
    file. Leaves the model as it was."""
    torch = load("torch")
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        parts = [listed(model(*rows)) for rows in zip(*(x.tensor_split(count) for x in inputs))]
    outputs = [torch.cat(rows) if count > 1 else rows[0] for rows in zip(*parts)]
    return {f"eval.{i}": y for i, y in enumerate(outputs)}


def save_step(model, program, inputs, path):
    """Runs the model in eval mode and one step of the program, in one piece and in
    micro-batches, and writes inputs and results."""
    torch = load("torch")
    module = program.module()
    # Of tied parameters the first name counts. A buffer that no state dict has counts if it
    # changes.
    known = {f"grad.{k}" for k, _ in module.named_parameters()}
    known |= {f"buffer.{k}" for k in program.state_dict}
    before = {f"buffer.{k}": b.clone() for k, b in module.named_buffers()}

    def step(count):
        found = {k: v for k, v in run_step(module, inputs, count).items()
                 if k in known or k.startswith(("output.", "weight."))
                 or k in before and not torch.equal(v, before[k])}
        return evaluate(model, inputs, count) | found

    found = {f"input.{i}": x for i, x in enumerate(inputs)} | step(1)
    if all(y.dim() for k, y in found.items() if k.startswith("output.")):  # has rows
        count = max(n for n in (1, 2, 4) if n <= len(inputs[0]))
        found |= {f"micro.{k}": v for k, v in step(count).items()
                  if not k.startswith("weight.")}
        found["micro.count"] = torch.tensor(count)
    torch.save({k: v.contiguous().clone() for k, v in found.items()}, path)


# The comparison of a program with its model.

def distance(found, expected):
    """Returns 0 if two tensors have the same bits, else the largest difference of two
    elements, divided by the largest expected element; infinity for other shapes."""
    torch = load("torch")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    kind = torch.cdouble if found.is_complex() else torch.double
    a, b = found.to(kind), expected.to(kind)
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in (a, b)]
    bits = [each.masked_fill(each.isnan(), torch.nan).view(torch.int64) for each in parts]
    if torch.equal(*bits):
        return 0
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


REASONS = {
    "output": "torch.export has changed the model",
    "grad": "torch.export keeps the forward only: an autograd.Function loses its backward, "
            "and hooks are left out",
    "buffer": "torch.export has changed the model",
    "eval": "gpipe's eval() switches all dropout and norms, and nothing else; export the "
            "model in eval mode as a second program",
    "eval buffer": "the model changes it in eval mode, and gpipe's eval() does not",
}


def differences(found, expected, reason=None):
    """Returns a line for each tensor that is not in both steps with the same bits. The
    names are those of run_step(). `reason`: a key of REASONS, None for one by the name."""
    lines = []
    for name in expected | found:
        kind, _, what = name.partition(".")
        if kind == "weight" or (kind == "buffer" and name not in expected):
            continue  # such as a constant, which the model does not name
        label = {"grad": "gradient of", "output": "output", "buffer": "buffer"}[kind]
        if name not in expected or name not in found:
            text = "is missing in the " + ("program" if name in expected else "model")
        else:
            far = distance(found[name], expected[name])
            if far == 0:
                continue
            text = f"differs by {far:.1e} of the largest element"
        lines.append(f"{label} {what} {text}; {REASONS[reason or kind]}")
    return lines


def set_argument(node, names, name, value):
    """Sets an argument of a node. `names`: those of all arguments."""
    if name in node.kwargs:
        node.update_kwarg(name, value)
    else:
        node.update_arg(names.index(name), value)


def switch_to_eval(module):
    """Switches dropout and norms of an exported module to eval mode, as gpipe's eval()
    does (models/exported/operators.cc)."""
    torch = load("torch")
    for graph_module in module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            names = [each.name for each in node.target._schema.arguments]
            given = dict(zip(names, node.args)) | node.kwargs
            if "running_mean" in names and given["running_mean"] is None:
                continue  # a norm without running statistics keeps those of the batch
            for name, value in given.items():
                if name in ("train", "training", "use_input_stats") and value is True:
                    set_argument(node, names, name, False)
                elif name == "dropout_p":
                    set_argument(node, names, name, 0.0)
        if hasattr(graph_module, "recompile"):
            graph_module.recompile()
    return module


def check(model, program, inputs):
    """Returns what differs between a model in train mode and its program."""
    torch = load("torch")
    lines = differences(run_step(program.module(), inputs), run_step(model, inputs))
    before = {f"buffer.{k}": b.clone() for k, b in model.named_buffers()}
    switched = switch_to_eval(program.module())
    with torch.no_grad():
        torch.manual_seed(7)
        expected = {f"output.{i}": y for i, y in enumerate(listed(model.eval()(*inputs)))}
        after = {f"buffer.{k}": b.clone() for k, b in model.named_buffers()}
        for name, buffer in model.named_buffers():
            buffer.copy_(before[f"buffer.{name}"])
        torch.manual_seed(7)
        found = {f"output.{i}": y for i, y in enumerate(listed(switched(*inputs)))}
    model.train()
    lines += [f"eval(): {each}" for each in differences(found, expected, "eval")]
    return lines + [f"eval(): {each}" for each in differences(before, after, "eval buffer")]


def read_flags():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME",
        help="the models, or FILE.py:FUNCTION; default: all of --list")
    add("--list", action="store_true", help="print the names, and what they need")
    add("--out", help="the folder for the files")
    add("--batch", type=int, default=8, help="rows of the input, at least 2")
    add("--image", type=int, default=64, help="height and width of images, a multiple of 32")
    add("--tokens", type=int, default=16, help="length of texts, and of whisper's encoder")
    add("--vocabulary", type=int, default=128, help="different tokens, more than 3")
    add("--width", type=int, default=64, help="width, where a model has a single one")
    add("--layers", type=int, default=4, help="their layers (of encoder and decoder each)")
    add("--heads", type=int, default=4, help="their attention heads, an even number")
    add("--kv_heads", type=int, default=0,
        help="heads of keys and values where these can be fewer; 0: half of --heads")
    add("--feed_forward", type=int, default=0,
        help="width between the two products of a block of transformers; 0: 2 x --width")
    add("--meta", action="store_true", help="export on the meta device, without weights")
    add("--bfloat16", action="store_true", help="weights in bfloat16 instead of float32")
    add("--check", action="store_true",
        help="compare each program with its model, and end with status 1 if they differ")
    add("--seed", type=int, default=1, help="the seed of weights and inputs")
    flags = parser.parse_args()
    if not flags.list and not flags.out:
        parser.error("give a folder with --out, or --list")
    if flags.check and flags.meta:
        parser.error("--check needs weights, which --meta leaves out; use one of them")
    if flags.batch < 2:
        parser.error(f"--batch={flags.batch}: export treats a size below 2 as a constant; "
                     "use at least 2")
    for name, least in (("image", 1), ("tokens", 1), ("vocabulary", 4), ("width", 1),
                        ("layers", 1), ("heads", 1), ("kv_heads", 0), ("feed_forward", 0)):
        if getattr(flags, name) < least:
            parser.error(f"--{name}={getattr(flags, name)}: must be at least {least}")
    if flags.image % 32:
        parser.error(f"--image={flags.image}: must be a multiple of 32")
    if flags.width % flags.heads or flags.heads % 2:
        parser.error(f"--heads={flags.heads} must be even and divide --width={flags.width}")
    flags.kv_heads = flags.kv_heads or flags.heads // 2
    flags.feed_forward = flags.feed_forward or 2 * flags.width
    if flags.heads % flags.kv_heads:
        parser.error(f"--kv_heads={flags.kv_heads} must divide --heads={flags.heads}")
    return parser, flags


def main():
    parser, flags = read_flags()
    packages = models(flags)
    makers = {name: make for group in packages.values() for name, make in group.items()}
    if flags.list:
        for package, group in packages.items():
            for name in group:
                print(f"{name:24} {package}")
        return 0
    own = [name for name in flags.names if ".py:" in name]
    unknown = [name for name in flags.names if name not in makers and name not in own]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(makers)}")
    files = [file_of(name) for name in flags.names]
    if len(set(files)) < len(files):
        parser.error("two of the models have the same name, and so the same file: "
                     f"{', '.join(flags.names)}")
    makers |= {name: own_model(name) for name in own}
    load("torch").set_num_threads(1)  # more threads add up in another order
    os.makedirs(flags.out, exist_ok=True)
    failed = 0
    for name in flags.names or makers:
        begin = time.monotonic()
        different = []
        try:
            text, different = export(name, makers[name], flags)
        except Exception as error:  # one model must not stop the others
            failed += 1
            first = next(iter(str(error).splitlines()), "without a text")
            text = f"failed: {type(error).__name__}: {first}"
        failed += bool(different)
        print(f"{name}: {text}, {time.monotonic() - begin:.1f} s", flush=True)
        for line in different:
            print(f"  {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
