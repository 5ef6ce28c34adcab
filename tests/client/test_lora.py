"""Adapters of low rank, against products and averages taken by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import motley
from motley.client.lora import lora
from motley.core.errors import MotleyError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import compose
from motley.nets.low_rank import LowRank, adapted, merged
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run
from tests import tiny


def plain() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_adapters_change_nothing_at_first_and_add_their_product() -> None:
    module, x = plain(), normal(7, 9)
    before = module(x)
    adapted(module, 2, 6.0, "all", (), True)
    assert torch.equal(module(x), before)
    layer = module[0]
    assert isinstance(layer, LowRank)
    with torch.no_grad():
        layer.adapter.up.copy_(normal(6, 2))
    weight = layer.base.weight + 3.0 * layer.adapter.up @ layer.adapter.down
    assert torch.allclose(layer(x), x @ weight.T + layer.base.bias, atol=1e-5)
    expected = module(x)
    assert torch.allclose(merged(module)(x), expected, atol=1e-5)
    assert all(isinstance(one, nn.Linear | nn.ReLU) for one in module)


def test_only_adapters_are_trained_sent_and_charged() -> None:
    module = plain()
    e = tiny.experiment(compose(lora(rank=2, on="all")), net=Network(module), cohort=6, rounds=1)
    names = [slot.name for slot in e.net.layout.slots]
    assert names == ["0.adapter.down", "0.adapter.up", "2.adapter.down", "2.adapter.up"]
    size = 2 * (9 + 6) + 2 * (6 + 5)
    assert e.net.size == size
    result = Run(e).go()
    assert result.records[-1].bytes_up == 6 * 4 * size
    state = result.model.state_dict()
    for name, value in module.state_dict().items():
        place, _, kind = name.rpartition(".")
        assert torch.equal(state[name if place == "4" else f"{place}.base.{kind}"], value)
    assert not hasattr(module[0], "adapter")  # the given module is as it was


def test_averages_are_of_factors_and_with_one_held_of_products() -> None:
    """The product of averages is not the average of products, unless one factor is the same everywhere."""

    def gap(both: bool) -> float:
        e = tiny.experiment(
            compose(lora(rank=2, on=["0"], both=both)), net=Network(plain()), cohort=6, rounds=1, lr=0.5
        )
        run = Run(e)
        result = run.go()
        own = list(_payloads(e))
        n = torch.tensor(tiny.SIZES, dtype=torch.float32)
        shares = n / n.sum()
        products = sum(share * _product(e.net, flat) for share, flat in zip(shares, own, strict=True))
        return float((_product(e.net, result.params) - products).abs().max() / products.abs().max())

    assert gap(both=True) > 1e-3
    assert gap(both=False) < 1e-5


def _payloads(e: Any) -> list[Tensor]:
    """The models that six clients make in the first round."""
    from motley.engine.loop import Loop
    from tests.engine.work import reports

    seen = tiny.Watched(Loop(e.site))
    Run(e, executor=seen).go()
    tasks = seen.batches[0]
    by_client = {a.client: a.start.value + r.payload for a, r in zip(tasks, reports(Loop(e.site), tasks), strict=True)}
    return [by_client[client] for client in range(6)]


def _product(net: Network, flat: Tensor) -> Tensor:
    named = net.layout.unflatten(flat)
    down = named.get("0.adapter.down", net.module.get_submodule("0.adapter").down)
    return named["0.adapter.up"] @ down  # type: ignore[operator]


def test_engines_agree() -> None:
    found = [
        tiny.run(compose(lora(rank=2, on="all", also="4")), net=Network(plain()), executor=executor).params
        for executor in ("loop", "batched")
    ]
    assert torch.allclose(*found, atol=1e-5)


def test_attention_of_torchs_own_layers() -> None:
    def encoder() -> nn.TransformerEncoderLayer:
        torch.manual_seed(1)
        return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    module, x = nn.Sequential(encoder(), nn.Flatten(), nn.Linear(24, 2)), normal(5, 3, 8)
    before = module(x)
    adapted(module, 2, 1.0, "attention", (), True)
    assert torch.allclose(module(x), before, atol=1e-6)
    trained = [name for name, one in module.named_parameters() if one.requires_grad]
    assert trained == [f"0.self_attn.{where}.{what}" for where in ("into", "out") for what in ("down", "up")]
    with torch.no_grad():
        for name, one in module.named_parameters():
            if name.endswith("up"):
                one.copy_(normal(*one.shape))
    net = Network(module)
    changed = module.eval()(x)
    assert not torch.allclose(changed, before, atol=1e-2)
    assert torch.allclose(net(net.initial(), x).logits, changed, atol=1e-5)
    assert torch.allclose(merged(module)(x), changed, atol=1e-4)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lora(), "finds no layer on='attention' in the model Sequential; its linear layers are 0, 2, 4"),
        (lora(on="all", also="9"), "train '9' too, and the model has no such layer"),
    ],
)
def test_layers_that_are_not_there_are_refused(part: Any, message: str) -> None:
    with pytest.raises(MotleyError, match=message):
        tiny.experiment(compose(part), net=Network(plain()))


# ------------------------------------------------------------------ weights from elsewhere
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_weights_of_a_file_are_taken_also_where_frozen(kind: str, tmp_path: Path) -> None:
    other = plain()
    with torch.no_grad():
        for one in other.parameters():
            one.add_(1.0)
    file = tmp_path / f"weights.{kind}"
    if kind == "pt":
        torch.save(other.state_dict(), file)
    else:
        safetensors.torch.save_file(other.state_dict(), file)
    module = plain()
    module[0].requires_grad_(False)
    e = tiny.experiment(net=Network(module), pretrained=str(file))
    x = normal(3, 9)
    assert torch.allclose(e.net(e.net.initial(), x).logits, other(x), atol=1e-6)
    assert next(slot.name for slot in e.net.layout.slots) == "2.weight"


def test_a_last_layer_of_another_shape_is_drawn_anew(tmp_path: Path) -> None:
    other = nn.Sequential(*plain()[:4], nn.Linear(5, 7))
    torch.save(other.state_dict(), tmp_path / "w.pt")
    with pytest.warns(UserWarning, match="last layer '4' is drawn anew"):
        e = tiny.experiment(net=Network(plain()), pretrained=str(tmp_path / "w.pt"))
    assert e.net.n_classes == 4


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(9, 5)).state_dict(),
            "'0.weight' has the shape .5, 9., not .6, 9., and 3 more",
        ),
        (lambda: [1, 2], "holds no weights by name"),
    ],
)
def test_weights_that_do_not_fit_are_refused(made: Any, message: str, tmp_path: Path) -> None:
    torch.save(made(), tmp_path / "w.pt")
    with pytest.raises(MotleyError, match=message):
        tiny.experiment(net=Network(plain()), pretrained=str(tmp_path / "w.pt"))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_text("weights")
    for name in ("w.pt", "missing.safetensors"):
        with pytest.raises(MotleyError, match="cannot be read"):
            tiny.experiment(net=Network(plain()), pretrained=str(tmp_path / name))


def test_by_name_in_a_recipe() -> None:
    recipe = tiny.recipe(method="lora(rank=2, on='all')", model="mlp(hidden=[6])", data="synthetic", clients=4)
    e = prepare(recipe, Given())
    assert all("adapter" in slot.name for slot in e.net.layout.slots)
    assert Key.root(0) is not None
    assert motley is not None
