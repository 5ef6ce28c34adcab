"""The server's half of a method: runs the composed hooks, each with the state and the numbers of its own part.

What hooks return is checked: a wrong shape, a selection that names nobody or somebody twice, weights that are not
numbers are refused with a sentence that names the part and the hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from motley.core.errors import HookError, InputError
from motley.core.hooks import HOOKS
from motley.core.layout import with_sound_variances
from motley.core.network import Network
from motley.core.part import Method
from motley.core.schedule import value_at
from motley.core.tasks import Dials
from motley.core.types import Outcomes, Plan, Pool, Round, Setting, Tree, Updates
from motley.server.aggregate import layerwise_mean


class MethodServer:
    """A method with the state of its parts. It sees what clients send and nothing else."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.method = method
        self.net: Network = setting.net
        self.state: dict[str, Tree] = {name: hook(setting) for name, hook in method.hooks("init")}
        self._asked = [p for p in method.parts if p.dials and any(HOOKS[h].place == "client" for h in p.filled)]
        self._numbers: tuple[int, Dials] = (0, {})
        self._open: list[tuple[str, str, str, Tensor]] = []  # part, hook, what it must give, whether: looked at later

    def select(self, rnd: Round, pool: Pool) -> list[int]:
        """Who trains: ids in the order in which they will be dispatched."""
        k = min(rnd.cohort, len(pool.ids))
        if k == 0:
            return []
        rnd = rnd._replace(cohort=k)
        for name, hook in self.method.hooks("select"):
            return _cohort(name, hook(self.state.get(name), self._round(name, rnd), pool), pool)
        return uniform(rnd, pool).tolist()

    def plan(self, rnd: Round, ids: list[int], plan: Plan) -> Plan:
        """How much each of them trains."""
        for name, hook in self.method.hooks("plan"):
            plan = hook(self.state.get(name), self._round(name, rnd), torch.tensor(ids), plan)
            if not isinstance(plan, Plan):
                raise _wrong(name, "plan", plan, "the plan: plan, or plan._replace(...)")
            for column in plan[:4]:
                if not isinstance(column, Tensor) or column.shape != (len(ids),):
                    raise _wrong(name, "plan", column, f"columns of shape ({len(ids)},), one entry per client")
            if not bool(torch.isfinite(plan.epochs).all()) or bool((plan.epochs < 0).any()):
                raise _wrong(name, "plan", plan.epochs.tolist(), "epochs that are finite and not below 0")
            if not bool(torch.isfinite(plan.lr).all()) or bool((plan.lr < 0).any()):
                raise _wrong(name, "plan", plan.lr.tolist(), "learning rates that are finite and not below 0")
        return plan

    def send(self, rnd: Round) -> dict[str, Tree]:
        """What parts send down beside the weights."""
        return {name: hook(self.state.get(name), self._round(name, rnd)) for name, hook in self.method.hooks("send")}

    def dials(self, rnd: Round) -> Dials:
        """The numbers that parts read on clients, frozen for this round."""
        return {p.name: self._all_dials(rnd.number)[p.name] for p in self._asked}

    def _all_dials(self, number: int) -> Dials:
        if self._numbers[0] != number:
            found = {
                p.name: {key: value_at(one, number) for key, one in p.dials.items()}
                for p in self.method.parts
                if p.dials
            }
            self._numbers = number, found
        return self._numbers[1]

    def _round(self, name: str, rnd: Round) -> Round:
        """The round as one part sees it."""
        return rnd._replace(dials=self._all_dials(rnd.number).get(name, {}), net=self.net)

    def decode(self, payload: Tree) -> Tensor:
        """What arrived, as a change of the flat vector."""
        payload = self.method.decode(payload)
        if not isinstance(payload, Tensor) or payload.shape != (self.net.size,):
            got = f"a {type(payload).__name__}"
            if isinstance(payload, Tensor):
                got = f"a tensor of shape {tuple(payload.shape)}"
            coders = [name for hook in ("encode", "decode") for name, _ in self.method.hooks(hook)]
            whose = (
                f", as the hooks 'encode' and 'decode' of {', '.join(dict.fromkeys(coders))} left it," if coders else ""
            )
            raise InputError(f"An update{whose} is {got}; this model's has the shape ({self.net.size},).")
        return payload

    def observe(self, rnd: Round, updates: Updates) -> None:
        """What parts learn from arrivals; called once for every update, when it arrives."""
        for name, hook in self.method.hooks("observe"):
            self.state[name] = hook(self.state.get(name), self._round(name, rnd), updates.seen_by(name))

    def conclude(self, rnd: Round, outcomes: Outcomes) -> None:
        """What parts learn from tasks that ended, well or not; called once at the end of every round."""
        for name, hook in self.method.hooks("conclude"):
            self.state[name] = hook(self.state.get(name), self._round(name, rnd), outcomes)

    def aggregate(self, rnd: Round, params: Tensor, updates: Updates) -> Tensor:
        """The next global model."""
        weights = self._weights(rnd, updates)
        new = layerwise_mean(self.net, params, updates, weights) if not self.method.has("merge") else params
        for name, hook in self.method.hooks("merge"):
            new = hook(self.state.get(name), self._round(name, rnd), params, updates.seen_by(name), weights)
            _check_model(name, "merge", new, params)
            self._expect_finite(name, "merge", params, new)
        merged = new
        for name, hook in self.method.hooks("step"):
            made = hook(self.state.get(name), self._round(name, rnd), params, new, updates.seen_by(name))
            if not isinstance(made, tuple) or len(made) != 2:
                raise _wrong(name, "step", made, "a pair: the model and the part's state")
            _check_model(name, "step", made[0], params)
            self._expect_finite(name, "step", new, made[0])
            new, state = made
            if state is not None:
                self.state[name] = state
        layout = self.net.layout  # running statistics are merged, and no step moves them
        return with_sound_variances(layout, layout.with_statistics(new, merged))

    def _weights(self, rnd: Round, updates: Updates) -> Tensor:
        weights = updates.n
        for name, hook in self.method.hooks("weigh"):
            own = hook(self.state.get(name), self._round(name, rnd), updates.seen_by(name))
            if not isinstance(own, Tensor) or own.shape != (len(updates),):
                raise _wrong(name, "weigh", own, f"a tensor of shape ({len(updates)},), one weight per update")
            fine = torch.isfinite(own).all() & (own >= 0).all() & (own.sum() > 0)
            self._open.append((name, "weigh", "weights that are finite, not below 0, and not all 0", fine))
            weights = weights * own
        return weights

    def settle(self) -> None:
        """Stops with a sentence where a hook of this round gave no numbers; the host waits for them only here."""
        waiting, self._open = self._open, []
        for name, hook, wanted, fine in waiting:
            if not bool(fine):
                raise HookError(f"The hook '{hook}' of the part '{name}' must return {wanted}; it did not.")

    def _expect_finite(self, part: str, hook: str, before: Tensor, new: Tensor) -> None:
        """Asks later whether a hook gave numbers, where it was given some."""
        fine = ~torch.isfinite(before).all() | torch.isfinite(new).all()
        self._open.append((part, hook, "a model of finite numbers", fine))

    def load(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)


def uniform(rnd: Round, pool: Pool) -> Tensor:
    """``cohort`` ids without replacement, every available client equally likely."""
    chosen = rnd.key.fold("select").generator().choice(len(pool.ids), size=rnd.cohort, replace=False)
    return pool.ids[torch.from_numpy(chosen)]


def _cohort(part: str, chosen: Any, pool: Pool) -> list[int]:
    if not isinstance(chosen, Tensor) or chosen.dim() != 1 or chosen.dtype not in _IDS:
        raise _wrong(part, "select", chosen, "a tensor of client ids, whole numbers [K]")
    ids: list[int] = chosen.tolist()
    if not ids:
        raise _wrong(part, "select", ids, "at least one of the clients that are there")
    if len(set(ids)) < len(ids):
        raise _wrong(part, "select", ids, "every client once at most")
    found = torch.searchsorted(pool.ids, chosen.to(pool.ids)).clamp_max(len(pool.ids) - 1)
    strangers = chosen.to(pool.ids)[pool.ids[found] != chosen.to(pool.ids)]
    if len(strangers):
        raise _wrong(part, "select", ids, f"clients that are there; {int(strangers[0])} is not")
    return ids


_IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _check_model(part: str, hook: str, model: Any, like: Tensor) -> None:
    if not isinstance(model, Tensor) or model.shape != like.shape or model.dtype != like.dtype:
        kind = str(like.dtype).removeprefix("torch.")
        raise _wrong(part, hook, model, f"a model of shape {tuple(like.shape)} ({kind})")


def _wrong(part: str, hook: str, got: Any, wanted: str) -> HookError:
    return HookError(f"The hook '{hook}' of the part '{part}' returned {_shown(got)}; it must return {wanted}.")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
