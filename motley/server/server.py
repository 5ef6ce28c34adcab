"""The server's half of a round: runs the composed hooks, each with the state of its own part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from motley.core.errors import InputError
from motley.core.network import Network
from motley.core.part import Method
from motley.core.schedule import value_at
from motley.core.types import Outcomes, Plan, Pool, Round, Setting, Tree, Updates
from motley.server.aggregate import layerwise_mean


class Server:
    """A method with the state of its parts. It sees what clients send and nothing else."""

    def __init__(self, method: Method, net: Network, params: Tensor, n_clients: int, **known: Any) -> None:
        """``known``: what else parts may learn at the start, by its name in `Setting`."""
        self.method = method
        self.net = net
        setting = Setting(net, params, n_clients, **known)
        self.state: dict[str, Tree] = {name: hook(setting) for name, hook in method.hooks("init")}

    def select(self, rnd: Round, pool: Pool) -> list[int]:
        """Who trains: ids in the order in which they will be dispatched."""
        k = min(rnd.cohort, len(pool.ids))
        if k == 0:
            return []
        for name, hook in self.method.hooks("select"):
            chosen: list[int] = hook(self.state.get(name), rnd._replace(cohort=k), pool).tolist()
            return chosen
        return uniform(rnd._replace(cohort=k), pool).tolist()

    def plan(self, rnd: Round, ids: list[int], plan: Plan) -> Plan:
        """How much each of them trains."""
        for name, hook in self.method.hooks("plan"):
            plan = hook(self.state.get(name), rnd, torch.tensor(ids), plan)
        return plan

    def send(self, rnd: Round) -> dict[str, Tree]:
        """What parts send down beside the weights."""
        return {name: hook(self.state.get(name), rnd) for name, hook in self.method.hooks("send")}

    def dials(self, rnd: Round) -> dict[str, dict[str, Tensor]]:
        """The parts' numbers, frozen for this round."""
        return {
            p.name: {key: torch.tensor(value_at(number, rnd.number)) for key, number in p.dials.items()}
            for p in self.method.parts
            if p.dials
        }

    def decode(self, payload: Tree) -> Tensor:
        """What arrived, as a change of the flat vector."""
        for _, hook in reversed(self.method.hooks("decode")):
            payload = hook(payload)
        if not isinstance(payload, Tensor) or payload.shape != (self.net.size,):
            got = tuple(payload.shape) if isinstance(payload, Tensor) else type(payload).__name__
            raise InputError(f"An update has the shape {got}; this model's is ({self.net.size},).")
        return payload

    def observe(self, rnd: Round, updates: Updates) -> None:
        """What parts learn from arrivals; called once for every update, when it arrives."""
        rnd = rnd._replace(net=self.net)
        for name, hook in self.method.hooks("observe"):
            self.state[name] = hook(self.state.get(name), rnd, updates)

    def conclude(self, rnd: Round, outcomes: Outcomes) -> None:
        """What parts learn from tasks that ended, well or not; called once at the end of every round."""
        for name, hook in self.method.hooks("conclude"):
            self.state[name] = hook(self.state.get(name), rnd, outcomes)

    def aggregate(self, rnd: Round, params: Tensor, updates: Updates) -> Tensor:
        """The next global model."""
        rnd = rnd._replace(net=self.net)
        weights = updates.n
        for name, hook in self.method.hooks("weigh"):
            weights = weights * hook(self.state.get(name), rnd, updates)
        new = layerwise_mean(self.net, params, updates, weights) if not self.method.has("merge") else params
        for name, hook in self.method.hooks("merge"):
            new = hook(self.state.get(name), rnd, params, updates, weights)
        for name, hook in self.method.hooks("step"):
            new, state = hook(self.state.get(name), rnd, params, new, updates)
            if state is not None:
                self.state[name] = state
        return new

    def load(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)


def uniform(rnd: Round, pool: Pool) -> Tensor:
    """``cohort`` ids without replacement, every available client equally likely."""
    chosen = rnd.key.fold("select").generator().choice(len(pool.ids), size=rnd.cohort, replace=False)
    return pool.ids[torch.from_numpy(chosen)]
