"""The models of the comparison. Their layers are those of //models in C++.

Weights are drawn from PyTorch's generator in the same order as in the C++ models, so
one seed gives the same model in both.
"""

import torch
import torch.nn.functional as F
from torch import nn

UNET_CONVS = 2  # per level
HEADS = 4  # of the Transformer
CLASSES = {"resnet101": 1000, "amoebanetd": 10}


class Subject:
    """A model as a list of `layers`, the data of a step, and `loss`(output, target)."""

    def __init__(self, name, sizes, seed, skips):
        torch.manual_seed(seed)
        self.layers = MAKERS[name](sizes, skips)
        torch.manual_seed(seed + 1)
        batch, side = sizes.batch, sizes.side
        if name == "mlp":
            shape = (batch, sizes.width)
        elif name == "transformer":
            shape = (batch, side, sizes.width)
        else:
            shape = (batch, 3, side, side)
        self.input = torch.rand(shape)
        if name in CLASSES:
            self.target = torch.randint(CLASSES[name], (batch,))
            self.loss = F.cross_entropy
        elif name == "unet":
            self.target = torch.ones(batch, 1, side, side)
            self.loss = F.binary_cross_entropy_with_logits
        else:
            self.target = torch.rand(shape)
            self.loss = F.mse_loss

    def move_data(self, first, last):
        """Moves the input to the device `first` and the target to the device `last`."""
        self.input, self.target = self.input.to(first), self.target.to(last)

    def use_autocast(self, device, dtype):
        """Runs each layer and the loss under autocast, on whatever thread they run.

        `device`: "cpu" or "cuda". A scope around the whole model would not reach the
        threads of torchgpipe.
        """
        scope = torch.autocast(device, dtype=dtype)
        for layer in self.layers:
            layer.forward = scope(layer.forward)
        self.loss = scope(self.loss)

    def parameters(self):
        return sum(p.numel() for layer in self.layers for p in layer.parameters())


# ---- MLP: linear layers and ReLUs, `depth` of each.


def mlp(sizes, _):
    layers = []
    for _ in range(sizes.depth):
        layers += [nn.Linear(sizes.width, sizes.width), nn.ReLU()]
    return layers


# ---- Transformer: `depth` blocks of width `width` on sequences of `side`, each
# two layers, with LayerNorm after the sums (Vaswani et al., arXiv 1706.03762).


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        parts = parts.view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        heads = heads.transpose(1, 2).reshape(batch, length, width)
        return self.norm(x + self.out_proj(heads))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.linear2(F.relu(self.linear1(x))))


def transformer(sizes, _):
    torch.randn(1, sizes.width)  # draws as the C++ embedding, which is left out here
    layers = []
    for _ in range(sizes.depth):
        layers += [SelfAttention(sizes.width), FeedForward(sizes.width)]
    return layers


# ---- ResNet-101 (He et al., arXiv 1512.03385), 11 layers per bottleneck.


def conv(inputs, outputs, kernel, stride=1, padding=0):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)


def resnet101(_, skips):
    @skips.skippable(stash=["identity"])
    class Identity(nn.Module):
        def forward(self, x):
            yield skips.stash("identity", x)
            return x

    @skips.skippable(pop=["identity"])
    class Residual(nn.Module):
        def __init__(self, projection):
            super().__init__()
            self.projection = projection

        def forward(self, x):
            identity = yield skips.pop("identity")
            if self.projection is not None:
                identity = self.projection(identity)
            return x + identity

    def bottleneck(inputs, channels, stride):
        outputs = 4 * channels
        projection = None
        if stride != 1 or inputs != outputs:
            projection = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )
        namespace = skips.Namespace()
        return [
            Identity().isolate(namespace),
            conv(inputs, channels, 1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            conv(channels, channels, 3, stride, 1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            conv(channels, outputs, 1),
            nn.BatchNorm2d(outputs),
            Residual(projection).isolate(namespace),
            nn.ReLU(),
        ]

    layers = [
        conv(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, blocks in enumerate([3, 4, 23, 3]):
        channels = 64 << stage
        for k in range(blocks):
            stride = 2 if stage > 0 and k == 0 else 1
            layers += bottleneck(inputs, channels, stride)
            inputs = 4 * channels
    layers += [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, CLASSES["resnet101"]),
    ]
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
    return layers


# ---- U-Net of `depth` levels with `width` channels at the first level (that of
# torchgpipe, after Ronneberger et al., arXiv 1505.04597).


def unet(sizes, skips):
    @skips.skippable(stash=["skip"])
    class Stash(nn.Module):
        def forward(self, x):
            yield skips.stash("skip", x)
            return x

    @skips.skippable(pop=["skip"])
    class PopCat(nn.Module):
        def forward(self, x):
            skip = yield skips.pop("skip")
            bottom = skip.shape[2] - x.shape[2]
            right = skip.shape[3] - x.shape[3]
            if bottom or right:
                x = F.pad(x, (0, right, 0, bottom))
            return torch.cat([x, skip], dim=1)

    def cell(inputs, middle, outputs):
        layers = []
        for k in range(UNET_CONVS):
            channels = outputs if k == UNET_CONVS - 1 else middle
            layers += [
                conv(inputs if k == 0 else middle, channels, 3, 1, 1),
                nn.Dropout2d(0.1),
                nn.InstanceNorm2d(channels),
                nn.LeakyReLU(0.01),
            ]
        return layers

    width = [sizes.width << level for level in range(sizes.depth + 1)]
    encoders = [
        cell(3 if i == 0 else width[i - 1], width[i], width[i])
        for i in range(sizes.depth)
    ]
    bottom = cell(width[-2], width[-1], width[-2])
    decoders = [
        cell(width[i + 1], width[i] // 2, width[i] // 2) for i in range(sizes.depth)
    ]
    namespaces = [skips.Namespace() for _ in range(sizes.depth)]
    layers = []
    for encoder, namespace in zip(encoders, namespaces):
        layers += encoder + [Stash().isolate(namespace), nn.MaxPool2d(2, 2)]
    layers += bottom
    for decoder, namespace in zip(reversed(decoders), reversed(namespaces)):
        layers += [nn.Upsample(scale_factor=2), PopCat().isolate(namespace)]
        layers += decoder
    return layers + [conv(width[0] // 2, 1, 1)]


# ---- AmoebaNet-D of `depth` normal cells and `width` filters (Real et al., arXiv
# 1802.01548). A layer returns the output of its cell and that of the cell before it.


def relu_convs(*convs):
    """Returns ReLU, convolution and BatchNorm for each of `convs`."""
    layers = []
    for each in convs:
        layers += [nn.ReLU(), each, nn.BatchNorm2d(each.out_channels)]
    return nn.Sequential(*layers)


class FactorizedReduce(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = conv(inputs, outputs // 2, 1, 2)
        self.conv2 = conv(inputs, outputs // 2, 1, 2)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        x = F.relu(x)
        shifted = F.pad(x[:, :, 1:, 1:], (0, 1, 0, 1))
        return self.bn(torch.cat([self.conv1(x), self.conv2(shifted)], dim=1))


def none(channels, stride):
    return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)


def average_pool(_, stride):
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


def max_pool(_, stride):
    return nn.MaxPool2d(2, stride)


def conv_1x1(channels, stride):
    return relu_convs(conv(channels, channels, 1, stride))


def conv_3x3(channels, stride):
    quarter = channels // 4
    return relu_convs(
        conv(channels, quarter, 1),
        conv(quarter, quarter, 3, stride, 1),
        conv(quarter, channels, 1),
    )


def conv_1x7_7x1(channels, stride):
    quarter = channels // 4
    return relu_convs(
        conv(channels, quarter, 1),
        conv(quarter, quarter, (1, 7), (1, stride), (0, 3)),
        conv(quarter, quarter, (7, 1), (stride, 1), (3, 0)),
        conv(quarter, channels, 1),
    )


# First, pairs of (state, operation): the sum of each pair is a further state. Then, the
# states that form the output. The 3x3 maximum of the papers is an average in
# torchgpipe, and therefore here, too.
NORMAL = [
    [(1, conv_1x1), (1, average_pool)],
    [(1, none), (0, conv_1x7_7x1)],
    [(0, conv_1x1), (0, conv_1x7_7x1)],
    [(2, average_pool), (2, none)],
    [(1, average_pool), (5, conv_1x1)],
], [0, 3, 4, 6]
REDUCTION = [
    [(0, max_pool), (0, average_pool)],
    [(2, none), (1, conv_3x3)],
    [(2, conv_1x7_7x1), (2, average_pool)],
    [(3, none), (1, max_pool)],
    [(2, average_pool), (3, conv_1x1)],
], [4, 5, 6]


class Cell(nn.Module):
    def __init__(self, channels, previous, older, reduction, after_reduction):
        super().__init__()
        pairs, self.concat = REDUCTION if reduction else NORMAL
        self.reduce1 = relu_convs(conv(previous, channels, 1))
        if after_reduction:
            self.reduce2 = FactorizedReduce(older, channels)
        elif older != channels:
            self.reduce2 = relu_convs(conv(older, channels, 1))
        else:
            self.reduce2 = nn.Identity()
        self.states = [[state for state, _ in pair] for pair in pairs]
        self.operations = nn.ModuleList()
        for pair in pairs:
            for state, make in pair:
                stride = 2 if reduction and state < 2 else 1
                self.operations.append(make(channels, stride))

    def forward(self, states):
        previous, older = states if isinstance(states, tuple) else (states, states)
        states = [self.reduce1(previous), self.reduce2(older)]
        operations = iter(self.operations)
        for first, second in self.states:
            one = next(operations)(states[first])
            states.append(one + next(operations)(states[second]))
        return torch.cat([states[k] for k in self.concat], dim=1), previous


class Classify(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, states):
        return self.fc(F.adaptive_avg_pool2d(states[0], 1).flatten(1))


def amoebanetd(sizes, _):
    channels = sizes.width // 4
    layers = [
        nn.Sequential(nn.ReLU(), conv(3, channels, 3, 2, 1), nn.BatchNorm2d(channels))
    ]
    previous = older = channels
    after_reduction = False
    kinds = ["normal"] * (sizes.depth // 3)
    reduction = ["reduction"]
    for kind in 2 * reduction + kinds + reduction + kinds + reduction + kinds:
        reduces = kind == "reduction"
        channels *= 2 if reduces else 1
        layers.append(Cell(channels, previous, older, reduces, after_reduction))
        concat = (REDUCTION if reduces else NORMAL)[1]
        previous, older = channels * len(concat), previous
        after_reduction = reduces
    return layers + [Classify(previous, CLASSES["amoebanetd"])]


MAKERS = {
    "resnet101": resnet101,
    "unet": unet,
    "amoebanetd": amoebanetd,
    "mlp": mlp,
    "transformer": transformer,
}
