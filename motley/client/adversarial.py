"""WGAN with gradient penalty as a problem of two players (Gulrajani et al. 2017; GANDALF, Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from motley.client.problems import PROBLEMS
from motley.core.bill import Bill, Cost
from motley.core.errors import InputError
from motley.core.keys import fold_in, normal, uniform
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.problem import Model, Problem, Turns
from motley.core.ranges import Count, NotNegative, Positive
from motley.core.types import Batch, Client, Data, Facts, Mine, Plan, Round, Setting, Tree
from motley.core.vmapped import is_vmapped
from motley.nets.cost import flops

GENERATOR, CRITIC = 0, 1
JUDGED = 3  # times that the critic judges in one pass of the model
WORD = 0x67616E  # keeps these draws apart from those of the minibatches


class WassersteinGAN(Problem):
    """A generator and a critic in one flat vector; ``critic_steps`` steps of the critic, then one of the generator.

    Critic: ``mean D(x~) - D(x) + penalty (||grad D(x^)|| - 1)^2`` with ``x~ = G(z)``, ``x^ = g x + (1 - g) x~``.
    Generator: ``mean -D(G(z))``.
    """

    offers = frozenset()
    own_outputs = True

    def __init__(self, critic_steps: int = 2, penalty: float = 10.0, generator_rate: float = 0.5) -> None:
        super().__init__(name="wgan_gp", goals={"distance": -1})
        self.critic_steps, self.penalty, self.generator_rate = critic_steps, penalty, generator_rate

    # ------------------------------------------------------------------ turns
    def whose(self, step: Tensor) -> Tensor:
        """The player that moves in a step (counted from 0)."""
        return torch.where(step % (self.critic_steps + 1) < self.critic_steps, CRITIC, GENERATOR)

    def turn(self, net: Network) -> Turns:
        critic = [slot.name.startswith("critic.") for slot in net.layout.slots]
        if not hasattr(net.module, "generate") or not any(critic) or critic != sorted(critic):
            raise InputError(
                "problem=wgan_gp needs a model of a generator and a critic: gan_mlp or gan_conv, or a module with "
                "'generate' and 'judge' whose critic comes last."
            )
        border = net.layout.slots[critic.index(True)].start
        return Turns((slice(0, border), slice(border, net.size)), (self.generator_rate, 1.0), self.whose)

    # ------------------------------------------------------------------ losses
    def loss(self, model: Model, batch: Batch) -> Tensor:
        """That of whose turn it is; where many clients train together both are made, and one is taken."""
        c = model.client
        if not is_vmapped(c.step):
            critic = int(self.whose(c.step)) == CRITIC
            return self.of_critic(model, batch) if critic else self.of_generator(model, batch)
        mine = self.whose(c.step) == CRITIC
        return torch.where(mine, self.of_critic(model, batch), self.of_generator(model, batch))

    def of_critic(self, model: Model, batch: Batch) -> Tensor:
        """The generator is fixed."""
        told, key = _told(model, batch), _key(model)
        fake = model.piece("generate", self._noise(model, batch), told, fixed=True).detach()
        share = uniform(fold_in(key, 1), (len(batch.x), *[1] * (batch.x.dim() - 1)))
        between = share * batch.x + (1 - share) * fake
        slope = grad(lambda x: model.piece("judge", x, told).sum())(between)
        size = (slope.flatten(1).square().sum(1) + 1e-12).sqrt()  # differentiable where the slope is 0
        values = model.piece("judge", fake, told) - model.piece("judge", batch.x, told)
        return batch.mean(values.squeeze(1) + self.penalty * (size - 1).square())

    def of_generator(self, model: Model, batch: Batch) -> Tensor:
        """The critic is fixed: its weights have a gradient here, by which nothing moves."""
        told = _told(model, batch)
        fake = model.piece("generate", self._noise(model, batch), told)
        return batch.mean(-model.piece("judge", fake, told).squeeze(1))

    def bill(self, net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        """A step on average, in forward passes of the generator and the critic; a way back takes two.

        The critic's turn: samples are generated; the critic judges them, real ones and some in between (3), with the
        way back of all three (6), the slope in between (1), and the way back through that (2). The generator's: both
        forward (1 and 1), back through the critic to its input (1), and back through the generator (2).
        """
        pairs = zip(net.layout.layers, cost.forward, strict=True)
        by_player = [0.0, 0.0]
        for layer, forward in pairs:
            by_player[layer.name.startswith("critic.")] += forward
        generator, critic = by_player[0], by_player[1] / JUDGED
        turns = self.critic_steps
        step = (turns * (generator + 12 * critic) + 3 * generator + 2 * critic) / (turns + 1)
        return bill.plus(forwards=(step - flops(cost)) / cost.whole_forward)

    def _noise(self, model: Model, batch: Batch) -> Tensor:
        latent = int(model.client.net.module.latent)  # type: ignore[arg-type]
        return normal(fold_in(_key(model), 0), (len(batch.x), latent))

    # ------------------------------------------------------------------ judging
    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """``distance``: by how much the critic values test samples above generated ones."""
        real, fake, _ = outputs.mean(0).tolist()
        return {"distance": real - fake, "loss": -fake}


def _key(model: Model) -> Tensor:
    return fold_in(fold_in(model.client.key, WORD), model.client.step)


def _told(model: Model, batch: Batch) -> Tensor:
    """The classes of a minibatch as the model takes them: [B, C], or [B, 0] where it is not told."""
    classes = torch.arange(int(model.client.net.module.classes), device=batch.x.device)  # type: ignore[arg-type]
    return (batch.y[:, None] == classes).to(batch.x.dtype)


@PROBLEMS.add()
def wgan_gp(critic_steps: Count = 2, penalty: NotNegative = 10.0, generator_rate: Positive = 0.5) -> Problem:
    """Generative: a WGAN with gradient penalty. generator_rate: the generator's learning rate by the critic's."""
    return WassersteinGAN(critic_steps, penalty, generator_rate)


@part("workload", example={"steps": 2})
def fixed_steps(steps: Count = 9) -> Part:
    """Every client trains so many minibatch steps, however many samples it has."""

    def init(setting: Setting) -> Tree:
        n = torch.ones(setting.n_clients) if setting.n is None else setting.n
        return torch.ceil(n / setting.batch_size)

    def plan(s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan:
        epochs = steps / s.cpu()[ids]
        return plan._replace(epochs=epochs, floor=epochs.clone())

    return Part(init=init, plan=plan)


@part("wire", silent="it only tells")
def player_losses() -> Part:
    """Clients of a GAN tell the two players' losses on their samples after training, without the penalty: [2]."""

    def measure(c: Client, me: Mine, batch: Batch) -> Tensor:
        values = c.net(c.params, batch.x).logits
        real, fake = batch.mean(values[:, 0]), batch.mean(values[:, min(1, values.shape[1] - 1)])
        return torch.stack([-fake, fake - real])

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tensor]:
        return c, me.notes

    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(passes=1.0)  # over all samples, after training

    return Part(measure=measure, report=report, bill=bill)
