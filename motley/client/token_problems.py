"""The next token at every position of a text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from motley.client.problems import PROBLEMS
from motley.core.errors import DataError
from motley.core.problem import Learned, Problem


class NextToken(Problem):
    """Each position of a text foretells the token after it: outputs [B, T, V], targets [B, T].

    Of data whose target is the one token after a text (as of Shakespeare's characters), the texts' own tokens are
    targets too. ``ignore``: a token that is not learned, such as padding.
    """

    offers = frozenset()
    inputs = "text"
    fractions = frozenset({"accuracy"})

    def __init__(self, ignore: int | None = None) -> None:
        super().__init__(name="next_token", goals={"perplexity": -1, "accuracy": 1})
        self.ignore = ignore

    def width(self, dataset: Learned) -> int:
        return dataset.vocabulary

    def arranged(self, dataset: Any) -> Any:
        if not dataset.vocabulary:
            raise DataError(
                f"problem=next_token needs texts as tokens, but '{dataset.name}' holds numbers; make it with "
                "from_arrays(x, y, kind='text')."
            )
        y, test_y = (self._targets(*pair) for pair in ((dataset.x, dataset.y), (dataset.test_x, dataset.test_y)))
        largest = max((int(some.max()) for some in (y, test_y) if some.numel()), default=0)
        vocabulary = max(dataset.vocabulary, largest + 1)
        return replace(dataset, y=y, test_y=test_y, n_classes=0, vocabulary=vocabulary)

    def _targets(self, x: Tensor, y: Tensor) -> Tensor:
        odd = y[(y < 0) & (y != self.ignore)] if self.ignore is not None else y[y < 0]
        if odd.numel():
            raise DataError(
                f"Tokens are whole numbers from 0, but there is a target {int(odd[0])}; where it stands for padding, "
                f"say problem='next_token(ignore={int(odd[0])})'."
            )
        kind = x.dtype if not y.numel() or int(y.min()) >= 0 else torch.int64
        if y.dim() == 1:
            return torch.cat([x[:, 1:].to(kind), y.to(kind)[:, None]], 1)
        if y.shape != x.shape:
            raise DataError(
                f"problem=next_token needs a target for each position, or the one token after the text; for texts of "
                f"{x.shape[1]} tokens the targets have the shape {list(y.shape)}."
            )
        return y.to(kind)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over a text's positions: [B]."""
        told, counted = self._told(outputs, y)
        return told.sum(-1) / counted.sum(-1).clamp_min(1.0)

    def _told(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the log of what each token was given, 0 where it does not count; and whether it counts: [B, T]."""
        counted = torch.ones_like(outputs[..., 0]) if self.ignore is None else (y != self.ignore).to(outputs.dtype)
        wanted = y.long().clamp_min(0).unsqueeze(-1)  # what is ignored may be no token
        return -log_softmax(outputs, -1).gather(-1, wanted).squeeze(-1) * counted, counted

    def kept(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Of each text: the loss summed over tokens, tokens that were right, tokens that count: [B, 3]."""
        told, counted = self._told(outputs, y)
        right = (outputs.argmax(-1) == y) * counted
        return torch.stack([told.sum(-1), right.sum(-1), counted.sum(-1)], -1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Perplexity, accuracy and loss over all tokens that count, of what was `kept`."""
        told, right, counted = outputs.double().sum(0).tolist()
        loss = told / max(1.0, counted)
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return {"perplexity": perplexity, "accuracy": right / max(1.0, counted), "loss": loss}


@PROBLEMS.add()
def next_token(ignore: int | None = None) -> Problem:
    """The next token at every position of a text: perplexity, accuracy. ignore: a token that is not learned."""
    return NextToken(ignore)
