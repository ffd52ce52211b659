#!/usr/bin/env python3
"""Exports models of torch, torchvision and transformers, with random weights.

    tools/export_examples.py --list
    tools/export_examples.py --out=/tmp/models resnet18 llama
    tools/export_examples.py --out=/tmp/models --image=64 --layers=6    # all
    tools/export_examples.py --out=/tmp/models --meta --width=8192 --layers=80 llama
    tools/export_examples.py --out=/tmp/models --check my_model.py:make

Writes NAME.pt2 for gpipe::load_exported(), and NAME.pt with an input and what Python
computes with it, which //tools:exported --compare=NAME.pt reads. Needs torch, and
torchvision or transformers, but no network: models are made from their configurations.

Dimension 0 of each input varies. Models are in train mode, without dropout and stochastic
depth, so that micro-batches compute the same values in any order. NAME.pt has the result
of one step on one thread with the loss sum over i of (output.i * weight.i).sum():

    input.i, output.i    the inputs and outputs, in the order of the signature
    weight.i             the factor of an output in the loss
    grad.NAME            the gradient of a parameter
    buffer.NAME          a buffer, after the step

It also has the results of the same rows in micro-batches: all forwards, then all
backwards, in order. micro.count is their number, a scalar, and micro.output.i,
micro.grad.NAME and micro.buffer.NAME are as above.

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
import importlib
import importlib.util
import inspect
import os
import sys
import time

PIP_NAMES = {"torch": "torch", "torchvision": "torchvision", "transformers": "transformers"}


def load(module):
    """Imports a module, or ends the program with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        sys.exit(f"export_examples: cannot import {module} ({error}); run: "
                 f"{sys.executable} -m pip install {PIP_NAMES[package]}")


def one_output(model, call):
    """Returns a module with the model as its child, whose forward() is `call`. Its inputs
    have the names of call's parameters after the model."""
    torch = load("torch")

    class OneOutput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return call(self.model, *inputs)

    names = list(inspect.signature(call).parameters.values())[1:]
    OneOutput.forward.__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *names])
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


# torchvision: a function of the flags that returns a model and its inputs.

def images(name, flags, call=None, **options):
    torch, models = load("torch"), load("torchvision.models")
    model = getattr(models, name)(weights=None, **options)
    inputs = (torch.randn(flags.batch, 3, flags.image, flags.image),)
    return (one_output(model, call) if call else model), inputs


def resnet18(flags):
    return images("resnet18", flags)


def resnet101(flags):
    return images("resnet101", flags)


def mobilenet_v3_small(flags):
    return images("mobilenet_v3_small", flags, dropout=0.0)


def vit_b_16(flags):
    return images("vit_b_16", flags, image_size=flags.image)


def swin_t(flags):
    return images("swin_t", flags)


def densenet121(flags):
    return images("densenet121", flags)


def fcn_resnet50(flags):
    torch, models = load("torch"), load("torchvision.models.segmentation")
    model = models.fcn_resnet50(weights=None, weights_backbone=None, num_classes=1)
    inputs = (torch.randn(flags.batch, 3, flags.image, flags.image),)
    return one_output(model, lambda model, x: model(x)["out"]), inputs


# transformers.

def tokens(flags, count=None):
    torch = load("torch")
    return torch.randint(3, flags.vocabulary, (flags.batch, count or flags.tokens))


def decoder(flags, kind, **options):
    """A language model from the names that llama and mixtral share."""
    transformers = load("transformers")
    config = getattr(transformers, kind + "Config")(
        vocab_size=flags.vocabulary, hidden_size=flags.width,
        intermediate_size=flags.feed_forward, num_hidden_layers=flags.layers,
        num_attention_heads=flags.heads, num_key_value_heads=flags.kv_heads,
        max_position_embeddings=2 * flags.tokens, use_cache=False, **options)
    model = getattr(transformers, kind + "ForCausalLM")(config)
    return one_output(model, lambda model, input_ids: model(
        input_ids=input_ids).logits), (tokens(flags),)


def llama(flags):
    return decoder(flags, "Llama")


def mixtral(flags):
    return decoder(flags, "Mixtral", num_local_experts=4)


def qwen3_moe(flags):
    return decoder(flags, "Qwen3Moe", num_experts=4, num_experts_per_tok=2,
                   head_dim=flags.width // flags.heads,
                   moe_intermediate_size=flags.feed_forward // 2)


def gpt2(flags):
    transformers = load("transformers")
    config = transformers.GPT2Config(
        vocab_size=flags.vocabulary, n_positions=2 * flags.tokens, n_embd=flags.width,
        n_layer=flags.layers, n_head=flags.heads, use_cache=False, bos_token_id=0,
        eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    return one_output(model, lambda model, input_ids: model(
        input_ids=input_ids).logits), (tokens(flags),)


def bert(flags):
    torch, transformers = load("torch"), load("transformers")
    config = transformers.BertConfig(
        vocab_size=flags.vocabulary, hidden_size=flags.width, num_hidden_layers=flags.layers,
        num_attention_heads=flags.heads, intermediate_size=flags.feed_forward,
        max_position_embeddings=2 * flags.tokens)
    lengths = torch.arange(flags.batch) % flags.tokens + 1
    mask = (torch.arange(flags.tokens)[None, :] < lengths[:, None]).long()
    model = one_output(
        transformers.BertForMaskedLM(config), lambda model, input_ids, attention_mask: model(
            input_ids=input_ids, attention_mask=attention_mask).logits)
    return model, (tokens(flags), mask)


def t5(flags):
    transformers = load("transformers")
    config = transformers.T5Config(
        vocab_size=flags.vocabulary, d_model=flags.width, d_kv=flags.width // flags.heads,
        d_ff=flags.feed_forward, num_layers=flags.layers, num_heads=flags.heads, use_cache=False)
    model = one_output(
        transformers.T5ForConditionalGeneration(config),
        lambda model, input_ids, decoder_input_ids: model(
            input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits)
    return model, (tokens(flags), tokens(flags))


def whisper(flags):
    torch, transformers = load("torch"), load("transformers")
    config = transformers.WhisperConfig(
        vocab_size=flags.vocabulary, d_model=flags.width, encoder_layers=flags.layers,
        decoder_layers=flags.layers, encoder_attention_heads=flags.heads,
        decoder_attention_heads=flags.heads, encoder_ffn_dim=2 * flags.width,
        decoder_ffn_dim=2 * flags.width, num_mel_bins=16, max_source_positions=flags.tokens,
        max_target_positions=2 * flags.tokens, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    model = one_output(
        transformers.WhisperForConditionalGeneration(config),
        lambda model, input_features, decoder_input_ids: model(
            input_features=input_features, decoder_input_ids=decoder_input_ids).logits)
    features = torch.randn(flags.batch, 16, 2 * flags.tokens)
    return model, (features, tokens(flags))


MODELS = {
    "torch": (lstm, unet, diffusion_unet),
    "torchvision": (resnet18, resnet101, mobilenet_v3_small, vit_b_16, swin_t, densenet121,
                    fcn_resnet50),
    "transformers": (llama, gpt2, bert, t5, mixtral, qwen3_moe, whisper),
}


def without_randomness(model):
    """Sets every dropout rate of the model to 0: of modules, and of numbers that
    functions read."""
    for module in model.modules():
        kind = type(module).__name__
        if "Dropout" in kind or kind == "StochasticDepth":
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        for name in list(vars(config)) if config is not None else []:
            if isinstance(getattr(config, name), float) and (
                    "dropout" in name or name.endswith("pdrop")):
                setattr(config, name, 0.0)
    return model


def own_model(name):
    """Returns the function of a name FILE.py:FUNCTION, as one of the flags."""
    path, function = name.rsplit(":", 1)
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    def make(_):
        return getattr(module, function)()

    make.__name__ = function
    return make


def export(make, flags, is_own):
    """Exports a model. Returns a line of text, and a line for each difference that
    --check finds."""
    torch = load("torch")
    torch.manual_seed(flags.seed)
    with torch.device("meta" if flags.meta else "cpu"):
        model, inputs = make(flags)
    model = (model if is_own else without_randomness(model)).train()
    rows = ({0: torch.export.Dim("batch", min=1, max=4096)},) * len(inputs)
    program = torch.export.export(model, inputs, dynamic_shapes=rows, strict=False)
    path = os.path.join(flags.out, make.__name__)
    torch.export.save(program, path + ".pt2")
    if not flags.meta:
        save_step(program, inputs, path + ".pt")
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


def save_step(program, inputs, path):
    """Runs one step, in one piece and in micro-batches, and writes inputs and results."""
    torch = load("torch")
    module = program.module()
    # Of tied parameters the first name counts. A buffer that no node reads and no state
    # dict has is not in the file.
    known = {f"grad.{k}" for k, _ in module.named_parameters()}
    read = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    known |= {f"buffer.{k}" for node, k in program.graph_signature.inputs_to_buffers.items()
              if node in read or k in program.state_dict}

    lifted = program.graph_signature.inputs_to_lifted_tensor_constants.items()
    constants = {f"buffer.{k}": program.constants[k] for node, k in lifted if node in read}

    def step(count):
        return constants | {k: v for k, v in run_step(module, inputs, count).items()
                            if k in known or k.startswith(("output.", "weight."))}

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
    if torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan()):
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
    does (exported/operator_schema.cc)."""
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
    add("--width", type=int, default=64, help="width of all but torchvision's models")
    add("--layers", type=int, default=4, help="their layers (of encoder and decoder each)")
    add("--heads", type=int, default=4, help="their attention heads, an even number")
    add("--kv_heads", type=int, default=0,
        help="heads of keys and values of llama and mixtral; 0: half of --heads")
    add("--feed_forward", type=int, default=0,
        help="width between the two products of llama, mixtral, bert and t5; 0: 2 x --width")
    add("--meta", action="store_true", help="export on the meta device, without weights")
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
    if flags.width % flags.heads or flags.heads % 2:
        parser.error(f"--heads={flags.heads} must be even and divide --width={flags.width}")
    flags.kv_heads = flags.kv_heads or flags.heads // 2
    flags.feed_forward = flags.feed_forward or 2 * flags.width
    if flags.heads % flags.kv_heads:
        parser.error(f"--kv_heads={flags.kv_heads} must divide --heads={flags.heads}")
    return parser, flags


def main():
    parser, flags = read_flags()
    makers = {make.__name__: make for group in MODELS.values() for make in group}
    if flags.list:
        for package, group in MODELS.items():
            for make in group:
                print(f"{make.__name__:20} {package}")
        return 0
    own = [name for name in flags.names if ".py:" in name]
    unknown = [name for name in flags.names if name not in makers and name not in own]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(makers)}")
    makers |= {name: own_model(name) for name in own}
    load("torch").set_num_threads(1)  # more threads add up in another order
    os.makedirs(flags.out, exist_ok=True)
    failed = 0
    for name in flags.names or makers:
        begin = time.monotonic()
        different = []
        try:
            text, different = export(makers[name], flags, name in own)
        except Exception as error:  # one model must not stop the others
            failed += 1
            text = f"failed: {type(error).__name__}: {error}"
        failed += bool(different)
        print(f"{name}: {text}, {time.monotonic() - begin:.1f} s", flush=True)
        for line in different:
            print(f"  {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
