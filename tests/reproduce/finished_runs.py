"""A tiny reproduction, and finished runs that nobody had to train."""

from __future__ import annotations

from typing import Any

from motley.reproduce.results import Finished

TINY = """
title = "Tiny"
paper = "Nobody, Table 0"
seeds = [0, 1]
metrics = ["accuracy", "best_accuracy", "recorded(name='diversity')"]
also = { best_accuracy = "accuracy" }
[recipe]
data = "digits"
partition = "classes(per_client=2)"
clients = 6
cohort = 3
rounds = 3
model = "logistic"
diagnostics = ["diversity"]
[rows]
"A" = { method = "fedavg" }
"B" = { method = "rebafl" }
[columns]
"one" = {}
"two" = { epochs = 2 }
[numbers.accuracy]
"A" = [50.0, nan]
[[claims]]
text = "B beats A"
best = "B"
[[claims]]
text = "More is better"
order = ["two", "one"]
rows = ["A"]
[quick]
columns = ["one"]
recipe = { rounds = 1 }
"""


def finished(value: float, seed: int = 0, **changes: Any) -> Finished:
    content: dict[str, Any] = {
        "reproduction": "tiny",
        "cell": "A, one",
        "identity": f"x{value}{seed}",
        "seed": seed,
        "quick": False,
        "recipe": {},
        "summary": {"accuracy": value, "best_accuracy": value},
        "rounds": [1, 2, 3],
        "accuracy": [0.1, 0.5, value],
        **changes,
    }
    return Finished(**content)
