"""Convolutional networks of the papers: convolutions with ReLU and 2 x 2 pooling, then linear layers."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, cast

from torch import Tensor, nn

from motley.core.errors import DataError
from motley.nets.conv import Conv2d, activation, conv_blocks
from motley.nets.dense import Linear
from motley.nets.models import Split, image, model, widths


class Block(NamedTuple):
    """One convolution with ReLU, and whether 2 x 2 max-pooling follows."""

    channels: int
    kernel: int
    padding: int = 0
    pool: bool = True


class ConvNet(Split):
    """Layers ``conv1, conv2, ..., fc1, fc2, ..., head``; ReLU between them, leaky where ``slope`` is not 0.

    Without ``last_activation`` the features are the last hidden layer's numbers themselves. ``projection`` adds linear
    layers of these widths beside the head, on the same features; logits do not depend on them (`Network.project`).
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        classes: int,
        blocks: tuple[Block, ...],
        hidden: tuple[int, ...],
        classifier: tuple[str, ...] = ("head",),
        slope: float = 0.0,
        last_activation: bool = True,
        head_bias: bool = True,
        projection: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        channels, height, width = image(name, shape)
        self.pools = tuple(block.pool for block in blocks)
        self.n_hidden = len(hidden)
        self.classifier = classifier
        self.slope = slope
        self.n_activated = len(hidden) - (not last_activation)
        for i, block in enumerate(blocks, 1):
            self.add_module(f"conv{i}", Conv2d(channels, block.channels, block.kernel, padding=block.padding))
            channels = block.channels
            height, width = (_after(block, length) for length in (height, width))
            if min(height, width) < 1:
                raise DataError(
                    f"The images are too small for the model '{name}': nothing is left of {shape[1]} x {shape[2]} "
                    f"pixels after convolution {i}; use larger images, padding={block.kernel // 2} where the model "
                    "takes it, or mlp."
                )
        for i, (before, after) in enumerate(pairwise((channels * height * width, *hidden)), 1):
            self.add_module(f"fc{i}", Linear(before, after))
        n_features = hidden[-1] if hidden else channels * height * width
        self.head = Linear(n_features, classes, bias=head_bias)
        if projection:
            self.projection = _projection((n_features, *projection))

    def features(self, x: Tensor) -> Tensor:
        convolutions = [cast(Conv2d, self.get_submodule(f"conv{i}")) for i in range(1, len(self.pools) + 1)]
        h = conv_blocks(convolutions, x, self.pools, self.slope).flatten(1)
        for i in range(1, self.n_hidden + 1):
            h = self.get_submodule(f"fc{i}")(h)
            h = activation(h, self.slope) if i <= self.n_activated else h
        return h


def _projection(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them; only the last has a bias."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes), 2):
        layers += [Linear(before, after, bias=i == len(sizes)), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _after(block: Block, length: int) -> int:
    left = length + 2 * block.padding - block.kernel + 1
    return left // 2 if block.pool else left


@model
def cnn_ama(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    channels: list[int] | tuple[int, ...] = (6, 16),
    hidden: list[int] | tuple[int, ...] = (120, 84),
    padding: int = 0,
) -> ConvNet:
    """AMA-FES: two 5x5 convolutions with pooling and three linear layers, which are the classifier.

    The paper does not give the widths; the defaults are those of LeNet-5.
    """
    convolutions = widths("cnn_ama", "channels", channels, 1)
    linear = widths("cnn_ama", "hidden", hidden)
    classifier = (*(f"fc{i}" for i in range(1, len(linear) + 1)), "head")
    return ConvNet(
        "cnn_ama", shape, classes, tuple(Block(c, 5, padding) for c in convolutions), linear, classifier=classifier
    )


@model
def cnn_rebafl(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    channels: list[int] | tuple[int, ...] = (),
    padding: int | None = None,
    last_activation: bool = True,
    head_bias: bool = True,
    projection: list[int] | tuple[int, ...] = (),
) -> ConvNet:
    """ReBaFL: convolutions with pooling (16, 32 channels; 16, 32, 64 for colour images), a linear layer of 128.

    The paper gives the widths alone. Kernels (5x5, 5x5, then 3x3), paddings (0, 1, 1) and leaky ReLU are those of the
    networks of the same widths that its first author released with FedPAC. ``padding`` overrides all three. The
    authors' released network for CIFAR-10 has no activation after the linear layer (``last_activation=False``) and a
    head without bias (``head_bias=False``). ``projection`` gives it MOON's projection head, of these widths: [256, 128]
    on CIFAR-10 and [128] on Fashion-MNIST in their code.
    """
    colour = image("cnn_rebafl", shape)[0] > 1
    convolutions = widths("cnn_rebafl", "channels", channels) or ((16, 32, 64) if colour else (16, 32))
    blocks = tuple(
        Block(c, 5 if i < 2 else 3, padding if padding is not None else min(i, 1)) for i, c in enumerate(convolutions)
    )
    beside = widths("cnn_rebafl", "projection", projection)
    return ConvNet(
        "cnn_rebafl",
        shape,
        classes,
        blocks,
        (128,),
        slope=0.01,
        last_activation=last_activation,
        head_bias=head_bias,
        projection=beside,
    )


@model
def cnn_leaf(shape: tuple[int, ...], classes: int, vocabulary: int = 0, hidden: int = 2048) -> ConvNet:
    """LEAF's CNN for FEMNIST (FreezeFL): two padded 5x5 convolutions (32, 64) with pooling, a linear layer of 2048."""
    return ConvNet("cnn_leaf", shape, classes, (Block(32, 5, 2), Block(64, 5, 2)), (hidden,))


@model
def cnn_pfl(shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> ConvNet:
    """The CIFAR-10 benchmark model of pfl-research: 3x3 convolutions 32, 64, one pooling, a linear layer of 128.

    Weights start by Glorot's uniform rule as there. Its dropout (0.25 and 0.5) is left out: a network here is a
    function of parameters and inputs alone.
    """
    net = ConvNet("cnn_pfl", shape, classes, (Block(32, 3, pool=False), Block(64, 3)), (128,))
    for m in net.modules():
        if isinstance(m, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(m.weight)
    return net


@model
def cnn_radfed(shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> ConvNet:
    """A small CNN for CIFAR-10: padded 3x3 convolutions 32, 64, 64 with pooling, a linear layer of 64.

    RADFed trains the last layers of a MobileNetV2 pretrained on ImageNet; this one starts from nothing.
    """
    return ConvNet("cnn_radfed", shape, classes, (Block(32, 3, 1), Block(64, 3, 1), Block(64, 3, 1)), (64,))
