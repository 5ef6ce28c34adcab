"""Every registered model keeps the same promises."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from motley.core.errors import InputError, UnknownNameError
from motley.core.keys import Key
from motley.core.network import Network
from motley.engine.batched.mapping import one_computation
from motley.nets import MODELS, build

KEY = Key.root(3).fold("model")
GRAY, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (12,)
SMALL = {  # short forms that keep the tests quick
    "cnn_leaf": "cnn_leaf(hidden=32)",
    "resnet_gn": "resnet_gn(width=4)",
    "resnet_bn": "resnet_bn(depth=9, width=4)",
    "vit": "vit(width=16, layers=2)",
    "gpt": "gpt(width=16, last=true)",
    "char_lstm": "char_lstm(hidden=16)",
    "text_lstm": "text_lstm(hidden=12, embedding=6)",
}
# Those that generate give no logits of classes; tests/client/test_adversarial.py is about them.
TEXT_MODELS = [entry.name for entry in MODELS if "lstm" in entry.name or entry.name == "gpt"]
IMAGE_MODELS = [e.name for e in MODELS if e.name not in TEXT_MODELS and not e.name.startswith("gan_")]
CASES = [(name, shape) for name in IMAGE_MODELS for shape in (GRAY, COLOUR)] + [(name, TEXT) for name in TEXT_MODELS]


def network(name: str, shape: tuple[int, ...], key: Key = KEY) -> Network:
    return build(SMALL.get(name, name), shape, 10, 30 if len(shape) == 1 else 0, key)


def inputs(shape: tuple[int, ...], n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 1:
        return torch.randint(0, 30, (n, *shape), generator=generator)
    return torch.randn(n, *shape, generator=generator)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_shapes_and_halves(name: str, shape: tuple[int, ...]) -> None:
    net = network(name, shape)
    flat, x = net.initial(), inputs(shape, 3)
    features, logits = net(flat, x)
    assert features.shape == (3, net.n_features)
    assert logits.shape == (3, 10)
    assert torch.equal(logits, net.classify(flat, net.features(flat, x)))
    assert torch.equal(logits, net.module.eval()(x))
    assert torch.isfinite(net(flat, x[:1]).logits).all()
    assert net.head == "head"
    assert net.classifier_layers[-1] == net.n_layers - 1 == net.layout.index("head")


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_clients_at_once_equal_one_by_one(name: str, shape: tuple[int, ...]) -> None:
    clients, batch = 3, 2
    net = network(name, shape)
    noise = 0.02 * torch.randn(clients, net.size, generator=torch.Generator().manual_seed(1))
    params = net.initial() + noise
    x = inputs(shape, clients * batch).unflatten(0, (clients, batch))
    y = torch.arange(clients * batch).reshape(clients, batch) % 10

    def loss(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(p, x).logits, y)

    with one_computation():
        together = vmap(grad(loss))(params, x, y)
    for k in range(clients):
        p = params[k].clone().requires_grad_()
        (alone,) = torch.autograd.grad(loss(p, x[k], y[k]), p)
        torch.testing.assert_close(together[k], alone, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))
        moved = [bool(alone[slot.start : slot.stop].abs().sum() > 0) for slot in net.layout.slots]
        wanted = [slot.by_gradient for slot in net.layout.slots]
        assert all(moves == to_move for moves, to_move in zip(moved, wanted, strict=True)), name


@pytest.mark.parametrize(("name", "shape"), CASES[::2])
def test_weights_come_from_the_key_alone(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    first = network(name, shape).initial()
    before = torch.get_rng_state()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = network(name, shape).initial()
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(before, state)
    other = network(name, shape, Key.root(4).fold("model")).initial()
    assert torch.equal(first, other) == (name == "logistic")  # logistic regression starts at zero


@pytest.mark.parametrize(("name", "shape"), CASES[::2])
def test_networks_survive_pickling(name: str, shape: tuple[int, ...]) -> None:
    net = network(name, shape)
    copy = pickle.loads(pickle.dumps(net))
    flat, x = net.initial() + 0.1, inputs(shape, 2)
    assert torch.equal(copy(flat, x).logits, net(flat, x).logits)
    assert torch.equal(copy.initial(), net.initial())


@pytest.mark.parametrize(
    ("spec", "shape", "size"),
    [
        ("logistic", GRAY, 7850),
        ("mlp", (54,), 54 * 64 + 64 + 64 * 64 + 64 + 640 + 10),
        ("mlp(hidden=[200, 200])", GRAY, 199210),
        ("cnn_ama", GRAY, 156 + 2416 + 256 * 120 + 120 + 120 * 84 + 84 + 850),
        ("cnn_rebafl", GRAY, 416 + 12832 + 800 * 128 + 128 + 1290),
        ("cnn_rebafl", COLOUR, 1216 + 12832 + 18496 + 576 * 128 + 128 + 1290),
        ("cnn_leaf", GRAY, 832 + 51264 + 3136 * 2048 + 2048 + 20490),
        ("cnn_pfl", COLOUR, 896 + 18496 + 14 * 14 * 64 * 128 + 128 + 1290),
    ],
)
def test_sizes_are_those_of_the_papers(spec: str, shape: tuple[int, ...], size: int) -> None:
    assert build(spec, shape, 10, 0, KEY).size == size


def test_classifier_of_ama_is_its_three_linear_layers() -> None:
    net = build("cnn_ama", GRAY, 10, 0, KEY)
    assert [net.layout.layers[i].name for i in net.classifier_layers] == ["fc1", "fc2", "head"]


def test_digits_fit_with_padding() -> None:
    assert build("cnn_rebafl(padding=2)", (1, 8, 8), 10, 0, KEY).n_features == 128


def test_the_released_network_of_rebafl() -> None:
    """No activation before a head without bias; a projection head of its own weights beside it."""
    net = build("cnn_rebafl(last_activation=false, head_bias=false, projection=[256, 128])", COLOUR, 10, 0, KEY)
    plain = build("cnn_rebafl", COLOUR, 10, 0, KEY)
    assert net.size == plain.size - 10 + 128 * 256 + 256 * 128 + 128
    assert net.projects
    assert not plain.projects
    x, flat = inputs(COLOUR, 4), plain.initial()
    named = {**net.layout.unflatten(net.initial()), **plain.layout.unflatten(flat)}
    h = net.features(net.layout.flatten(named), x)
    assert torch.allclose(F.leaky_relu(h, 0.01), plain.features(flat, x))
    first, last = net.module.projection[0], net.module.projection[2]
    expected = F.linear(F.relu(h @ first.weight.T), last.weight, last.bias)
    assert torch.allclose(net.project(net.initial(), h), expected, atol=1e-5)


def test_resnet_18() -> None:
    net = build("resnet_gn(depth=18, width=4)", (3, 16, 16), 10, 0, KEY)
    convolutions = [layer for layer in net.layout.layers if ".conv" in layer.name]
    assert len(convolutions) == 17
    assert net(net.initial(), inputs((3, 16, 16), 2)).logits.shape == (2, 10)


@pytest.mark.parametrize(
    ("spec", "shape", "vocabulary", "says"),
    [
        ("cnn_ama", (54,), 0, "takes images"),
        ("cnn_ama", (1, 8, 8), 0, "too small"),
        ("resnet_gn", (1, 8, 8), 0, "too small"),
        ("resnet_gn(depth=10)", COLOUR, 0, "9, 18"),
        ("resnet_gn(width=0)", COLOUR, 0, "positive"),
        ("char_lstm", GRAY, 0, "takes text"),
        ("text_lstm", (20,), 0, "vocabulary is 0"),
        ("mlp", (20,), 30, "takes numbers"),
        ("logistic", (0,), 0, "at least one number"),
        ("mlp(hidden=[64, 0])", (20,), 0, "positive whole numbers"),
        ("mlp(hidden=64)", (20,), 0, "must be a list of whole numbers"),
    ],
)
def test_wrong_inputs_give_a_sentence(spec: str, shape: tuple[int, ...], vocabulary: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        build(spec, shape, 10, vocabulary, KEY)


def test_wrong_names_give_a_sentence() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'logistic'"):
        build("logistik", (4,), 2, 0, KEY)
    with pytest.raises(InputError, match="its arguments are: hidden"):
        build("mlp(depth=3)", (4,), 2, 0, KEY)
    with pytest.raises(InputError, match="one model"):
        build("mlp+logistic", (4,), 2, 0, KEY)
