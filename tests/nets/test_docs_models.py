"""The page on models names every model, and its example of an own model works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from motley.core.keys import Key
from motley.core.network import Network
from motley.nets import MODELS, build

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_model_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)", PAGE.read_text(), flags=re.M))
    assert rows == {entry.name for entry in MODELS}


def test_own_models_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "entries", dict(MODELS.entries))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    names: dict[str, object] = {}
    plain, own = (b for b in blocks if "net = Network(nn.Sequential" in b or "class Tiny" in b)
    exec(plain, names)
    assert isinstance(names["net"], Network)
    exec(own, {"__name__": "tiny"})
    net = build("tiny(width=4)", (1, 28, 28), 10, 0, Key.root(1))
    assert net.classifier_layers == (1, 2)
    assert net(net.initial(), torch.zeros(2, 1, 28, 28)).logits.shape == (2, 10)
    assert MODELS["tiny"].parameters == {"width": 8}
