"""A problem of one's own: classes that have an order, learned as thresholds (Niu et al. 2016).

    python examples/ordinal.py

The model gives C - 1 numbers; number j says whether the class lies above j. Its loss is the sum of their binary
cross-entropies, its headline the mean distance of the guess in classes: small is good, and everything that compares
runs follows that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as binary_loss

import motley
from motley.extend import Problem


class Ordinal(Problem):
    """Ordered classes 0 .. C - 1 as C - 1 thresholds."""

    def __init__(self, n_classes: int) -> None:
        super().__init__(name="ordinal", goals={"distance": -1, "accuracy": 1})
        self.steps = torch.arange(n_classes - 1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        above = (y.reshape(-1, 1) > self.steps.to(y.device)).to(outputs.dtype)
        return binary_loss(outputs, above, reduction="none").sum(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        gap = ((outputs > 0).sum(-1) - y.reshape(-1)).abs().to(torch.float32)
        return {
            "distance": float(gap.mean()),
            "accuracy": float((gap == 0).to(torch.float32).mean()),
            "loss": float(self.losses(outputs, y).mean()),
        }


def severity(n: int = 1200, n_classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Patients with eight measurements and a severity from 0 to 4."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    hidden = x @ rng.normal(size=8) + 0.5 * rng.normal(size=n)
    return x, np.digitize(hidden, np.quantile(hidden, np.linspace(0, 1, n_classes + 1)[1:-1])).astype(np.float32)


def train(rounds: int = 20) -> motley.Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    settings: dict[str, Any] = {"clients": 12, "cohort": 6, "rounds": rounds, "lr": 0.05, "epochs": 2}
    return motley.train(model, severity(), problem=Ordinal(5), method="fedprox+ama", **settings)


if __name__ == "__main__":
    result = train()
    first, last = result.records[0].scores, result.scores
    print(f"mean distance {first['distance']:.2f} after the first round, {last['distance']:.2f} after the last")
