"""WGAN with gradient penalty: its losses and steps against plain loops, its turns, and the same on every executor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import motley
from motley.client.adversarial import WORD, WassersteinGAN
from motley.client.minibatch import minibatches
from motley.client.trainer import Training, new_client, objective, train
from motley.core.errors import DataError, InputError
from motley.core.keys import Key, fold_in, normal, uniform
from motley.core.network import Network
from motley.core.types import Batch, Client
from motley.nets.conv import Conv2d
from motley.nets.dense import Linear
from motley.nets.gan import GAN
from motley.nets.zoo import build
from motley.protocol.group_models import flat
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.launch import Run
from tests import tiny

PLAN = "fedavg+fixed_steps(steps=7)+player_losses"


def experiment(model: str = "gan_mlp(hidden=[6], latent=3)", **changes: Any) -> Experiment:
    """The tiny data, with a GAN for them."""
    data = changes.pop("data", None) or tiny.data()
    shape = data.dataset.input_shape
    net = build(model, shape, data.dataset.n_outputs, 0, Key.root(3).fold("init"))
    base = {"problem": "wgan_gp", "method": PLAN, "optimizer": "adam(beta1=0.0, beta2=0.9)", "lr": 0.01, "rounds": 2}
    return prepare(tiny.recipe(**{**base, **changes}), Given(data=data, net=net))


def client(e: Experiment, k: int = 1, key: int = 5) -> Client:
    facts = e.site.facts([tiny.assignment(k, net=e.net, epochs=2.0, lr=0.01)]).row(0)
    return new_client(e.training, e.net.initial(), facts, torch.tensor(key))


# ------------------------------------------------------------------ plain loops
def drawn(c: Client, step: int, n: int, latent: int) -> tuple[Tensor, Tensor]:
    key = fold_in(fold_in(c.key, WORD), torch.tensor(step))
    return normal(fold_in(key, 0), (n, latent)), uniform(fold_in(key, 1), (n, 1))


def critic_loss(gan: GAN, x: Tensor, z: Tensor, share: Tensor, told: Tensor) -> Tensor:
    """Lines 9 to 14 of Algorithm 1, sample by sample."""
    total = torch.zeros(())
    for i in range(len(x)):
        one = slice(i, i + 1)
        fake = gan.generate(z[one], told[one]).detach()
        between = (share[i] * x[one] + (1 - share[i]) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(gan.judge(between, told[one]).sum(), between, create_graph=True)
        penalty = 10.0 * (slope.norm() - 1) ** 2
        total = total + (gan.judge(fake, told[one]) - gan.judge(x[one], told[one])).squeeze() + penalty
    return total / len(x)


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("step", [0, 2])
def test_losses_and_gradients_are_those_of_a_plain_loop(step: int, conditional: bool) -> None:
    """Step 0 is the critic's, with the second derivative of the penalty; step 2 the generator's."""
    e = experiment(f"gan_mlp(hidden=[6], latent=3, conditional={conditional})")
    c = client(e).with_(step=torch.tensor(step))
    data = e.data.client(1)
    x, y = data.x[:5], data.y[:5]
    gan = e.net.module
    assert isinstance(gan, GAN)
    told = nn.functional.one_hot(y, 4).float() if conditional else torch.zeros(5, 0)
    free = c.params.clone().requires_grad_()
    loss, _ = objective(e.training, c, free, e.training.full_span, Batch(x, y))
    (found,) = torch.autograd.grad(loss, free)
    z, share = drawn(c, step, 5, 3)
    expected = critic_loss(gan, x, z, share, told) if step == 0 else -gan.judge(gan.generate(z, told), told).mean()
    torch.testing.assert_close(loss, expected)
    by_hand = flat_gradient(expected, list(gan.parameters()))
    turns = WassersteinGAN().turn(e.net)
    mine = turns.players[1 if step == 0 else 0]
    torch.testing.assert_close(found[mine], by_hand[mine], atol=1e-5, rtol=1e-4)
    assert float(found[mine].abs().max()) > 0


def test_local_training_is_that_of_two_torch_optimizers() -> None:
    """T_d = 2 steps of the critic by Adam, then one of the generator by an Adam of its own at half the rate."""
    e = experiment()
    c = client(e)
    c = c.with_(facts=c.facts._replace(steps=torch.tensor(7.0)))
    data = e.data.client(1)
    found = train(e.training, c, data).payload
    gan = build("gan_mlp(hidden=[6], latent=3)", (9,), 4, 0, Key.root(3).fold("init")).module
    assert isinstance(gan, GAN)
    start = torch.cat([p.detach().flatten().clone() for p in gan.parameters()])
    critic = torch.optim.Adam(gan.critic.parameters(), 0.01, betas=(0.0, 0.9))
    generator = torch.optim.Adam(gan.generator.parameters(), 0.005, betas=(0.0, 0.9))
    for step, (batch, _) in enumerate(minibatches(c.key, data, e.training.batch_size, 7)):
        z, share = drawn(c, step, len(batch.x), 3)
        told = torch.zeros(len(batch.x), 0)
        if step % 3 < 2:
            critic.zero_grad(), critic_loss(gan, batch.x, z, share, told).backward(), critic.step()
        else:
            generator.zero_grad(), (-gan.judge(gan.generate(z, told), told).mean()).backward(), generator.step()
    end = torch.cat([p.detach().flatten() for p in gan.parameters()])
    torch.testing.assert_close(found, end - start, atol=2e-5, rtol=1e-3)


# ------------------------------------------------------------------ executors
@pytest.mark.parametrize("method", [PLAN, f"{PLAN}+proximal(mu=0.1)", f"{PLAN}+hand_over_noise(sigma=0.01)"])
def test_executors_agree(method: str) -> None:
    """Clients of 5 to 21 samples in minibatches of 4: some are padded."""
    found = [Run(experiment(method=method, executor=name)).go() for name in ("loop", "pool(workers=2)", "batched")]
    assert torch.equal(found[0].params, found[1].params)
    torch.testing.assert_close(found[0].params, found[2].params, atol=1e-5, rtol=1e-4)
    assert found[0].records[-1].train_loss == pytest.approx(found[2].records[-1].train_loss, rel=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("norm", ["none", "group"])
def test_convolutional_networks_agree_too(shape: tuple[int, ...], norm: str) -> None:
    net = build(f"gan_conv(width=8, latent=4, norm='{norm}', conditional=True)", shape, 3, 0, Key.root(1))
    gan = net.module
    assert isinstance(gan, GAN)
    made = gan.generate(torch.randn(2, 4), torch.eye(3)[:2])
    assert tuple(made.shape) == (2, *shape)
    assert tuple(net(net.initial(), made).logits.shape) == (2, 3)
    training = Training(net, motley.compose(), experiment().training.optimizer, 2, problem=WassersteinGAN())
    c = client(experiment()).with_(params=net.initial(), net=net, problem=training.problem)
    gradient = torch.func.grad(lambda free, step: _loss(training, c, free, step, made.detach()))
    both = torch.func.vmap(gradient, in_dims=(None, 0))(net.initial(), torch.tensor([0, 2]))
    for row, step, player in zip(both, (0, 2), (1, 0), strict=True):
        alone = gradient(net.initial(), torch.tensor(step))
        mine = WassersteinGAN().turn(net).players[player]
        torch.testing.assert_close(row[mine], alone[mine], atol=1e-5, rtol=1e-3)


def _loss(training: Training, c: Client, free: Tensor, step: Tensor, x: Tensor) -> Tensor:
    batch = Batch(x, torch.tensor([0, 2]))
    return objective(training, c.with_(step=step), free, training.full_span, batch)[0]


def test_kernels_have_nothing_to_do_with_it() -> None:
    """They have no second derivatives, so none of their layers is in these networks."""
    for spec, shape in (("gan_mlp", (1, 8, 8)), ("gan_conv", (3, 32, 32))):
        layers = list(build(spec, shape, 10, 0, Key.root(0)).module.modules())
        assert not any(isinstance(layer, Linear | Conv2d) for layer in layers)


# ------------------------------------------------------------------ beside
def test_losses_that_are_flat_by_hand() -> None:
    falling = torch.tensor([[8.0, 1.0], [4.0, 1.0], [2.0, 1.0], [1.9, 1.0]])
    assert not flat(falling, 0, 9.0)
    assert not flat(falling[:3], 2, 9.0)
    assert not flat(falling, 2, 0.05)  # 6 and 1.95 differ by 4.05, the largest is 8
    assert flat(falling, 1, 0.05)  # 0.1 is less than 0.4
    assert not flat(torch.cat([falling, falling[:1]]), 1, 0.05)


def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"problem=wgan_gp needs a model of a generator and a critic"):
        motley.run("digits", problem="wgan_gp")
    with pytest.raises(DataError, match=r"28 x 28 or 32 x 32 .* not 8 x 8 .* take gan_mlp for other sizes"):
        motley.run("digits", problem="wgan_gp", model="gan_conv")
    with pytest.raises(InputError, match="needs features"):
        experiment(method="moon")


def test_a_module_of_ones_own() -> None:
    class Own(GAN):
        """Linear both."""

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.latent, self.classes = 2, 0
            self.generator, self.critic = nn.Linear(2, 9), nn.Sequential()
            self.critic.add_module("head", nn.Linear(9, 1))
            self.register_buffer("probe", torch.randn(256, 2, generator=torch.Generator().manual_seed(0)))

    e = prepare(tiny.recipe(problem="wgan_gp", method=PLAN), Given(data=tiny.data(), net=Network(Own())))
    assert torch.isfinite(Run(e).go().params).all()
