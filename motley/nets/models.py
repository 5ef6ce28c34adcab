"""Where models are registered, what they share, and the checks of the shapes they are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.registry import Registry

MODELS: Registry[nn.Module] = Registry("model")

Factory = Callable[..., nn.Module]


def model(factory: Factory) -> Factory:
    """Registers ``f(shape, classes, vocabulary=0, **arguments) -> nn.Module`` under its own name."""
    return MODELS.add(hidden=("shape", "classes", "vocabulary"))(factory)


class Split(nn.Module):
    """A model in two halves: ``features(x)`` and the linear layer ``head`` on top of them."""

    head_name = "head"
    head: nn.Linear
    classifier: tuple[str, ...] = ("head",)

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The input of the last linear layer: [B, F]."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C]."""
        logits: Tensor = self.head(self.features(x))
        return logits


def image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of one sample as (channels, height, width), or a sentence."""
    if len(shape) != 3:
        raise DataError(
            f"The model '{name}' takes images of shape (channels, height, width), but one sample here has shape "
            f"{shape}; use mlp or logistic for tables, gpt, char_lstm or text_lstm for text."
        )
    return shape[0], shape[1], shape[2]


def tokens(name: str, shape: tuple[int, ...], vocabulary: int) -> int:
    """The number of tokens of one sample, or a sentence."""
    if len(shape) != 1 or vocabulary < 1:
        raise DataError(
            f"The model '{name}' takes text, a row of tokens with a vocabulary, but one sample here has shape {shape} "
            f"and the vocabulary is {vocabulary}; use logistic, mlp or a CNN for numbers."
        )
    return shape[0]


def numbers(name: str, shape: tuple[int, ...], vocabulary: int) -> int:
    """How many numbers one sample has when it is laid out in a row, or a sentence."""
    if vocabulary:
        raise DataError(
            f"The model '{name}' takes numbers, but the data are tokens of a vocabulary of {vocabulary}; "
            "use char_lstm or text_lstm."
        )
    size = 1
    for length in shape:
        size *= length
    if size < 1:
        raise DataError(f"The model '{name}' needs at least one number per sample, but one sample has shape {shape}.")
    return size


def widths(name: str, argument: str, values: list[int] | tuple[int, ...], at_least: int = 0) -> tuple[int, ...]:
    """A list of layer widths, or a sentence."""
    good = isinstance(values, list | tuple) and all(isinstance(v, int) and v > 0 for v in values)
    if not good or len(values) < at_least:
        raise DataError(
            f"The model '{name}' was given {argument}={values!r}; it takes a list of at least {at_least} positive "
            f"whole numbers, for example {argument}=[64, 64]."
        )
    return tuple(values)
