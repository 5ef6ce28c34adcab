"""Adapters of low rank beside weights that stay as they are (LoRA, Hu et al. 2022)."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from motley.core.errors import DataError


class Adapter(nn.Module):
    """The change ``scale * up @ down`` of a weight [out, in]; nothing at first, since ``up`` begins at 0."""

    def __init__(self, n_outputs: int, n_inputs: int, rank: int, scale: float, both: bool) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, n_inputs), requires_grad=both)
        self.up = nn.Parameter(torch.zeros(n_outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """What the change adds to the layer's outputs."""
        return nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale

    @property
    def change(self) -> Tensor:
        return self.scale * self.up @ self.down


class LowRank(nn.Module):
    """A linear layer with an adapter."""

    def __init__(self, base: nn.Module, rank: int, scale: float, both: bool) -> None:
        super().__init__()
        self.base = base
        n_outputs, n_inputs = _shape(base)
        self.adapter = Adapter(n_outputs, n_inputs, rank, scale, both)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.adapter(x)
        return out

    def merged(self) -> nn.Module:
        """The layer with the change in its weight."""
        change = self.adapter.change.detach()
        with torch.no_grad():
            self.base.weight.add_(change if isinstance(self.base, nn.Linear) else change.T)  # type: ignore[operator]
        return self.base


class LowRankAttention(nn.Module):
    """torch's attention layer with adapters beside its projections, which are parameters of its own."""

    _qkv_same_embed_dim = False  # keeps torch's transformer layers from computing with the bare weights by themselves

    def __init__(self, base: nn.MultiheadAttention, rank: int, scale: float, both: bool) -> None:
        super().__init__()
        if base.in_proj_weight is None:
            raise DataError(
                "An nn.MultiheadAttention whose keys or values have another size than its queries has three weights "
                "for them, for which there are no adapters; name other layers: lora(on=[...])."
            )
        self.base = base
        self.into = Adapter(*_two(base.in_proj_weight), rank, scale, both)
        self.out = Adapter(*_two(base.out_proj.weight), rank, scale, both)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)  # what a layer around it asks of it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tables = (self.base._parameters, "in_proj_weight"), (self.base.out_proj._parameters, "weight")
        before: list[Any] = [table[key] for table, key in tables]
        changed = [weight + one.change for weight, one in zip(before, (self.into, self.out), strict=True)]
        try:
            for (table, key), weight in zip(tables, changed, strict=True):
                table[key] = weight
            return self.base(*args, **kwargs)
        finally:
            for (table, key), weight in zip(tables, before, strict=True):
                table[key] = weight

    def merged(self) -> nn.Module:
        """The layer with the changes in its weights."""
        with torch.no_grad():
            self.base.in_proj_weight.add_(self.into.change)
            self.base.out_proj.weight.add_(self.out.change)
        return self.base


def adapted(module: nn.Module, rank: int, alpha: float, on: Any, also: Any, both: bool) -> nn.Module:
    """The module with adapters, in place; nothing else of it is trained but the layers that ``also`` names."""
    module.requires_grad_(False)
    found = _wanted(module, on)
    if not found:
        layers = [name for name, one in module.named_modules() if _fits(one)]
        raise DataError(
            f"The part 'lora' finds no layer on={on!r} in the model {type(module).__name__}; "
            + (f"its linear layers are {', '.join(layers)}." if layers else "it has no linear layer.")
        )
    for name in found:
        owner, _, key = name.rpartition(".")
        base = module.get_submodule(name)
        kind = LowRankAttention if isinstance(base, nn.MultiheadAttention) else LowRank
        setattr(module.get_submodule(owner), key, kind(base, rank, alpha / rank, both))  # type: ignore[arg-type]
    names = dict(module.named_modules())
    for name in [also] if isinstance(also, str) else also:
        if name not in names:
            raise DataError(f"The part 'lora' is to train '{name}' too, and the model has no such layer.")
        names[name].requires_grad_(True)
    return module


def merged(module: nn.Module) -> nn.Module:
    """A module whose adapters are in its weights, in place; all of it can be trained again."""
    for name, one in list(module.named_modules()):
        if isinstance(one, LowRank | LowRankAttention):
            owner, _, key = name.rpartition(".")
            setattr(module.get_submodule(owner), key, one.merged())
    return module.requires_grad_(True)


def _wanted(module: nn.Module, on: Any) -> list[str]:
    """The layers that get adapters: ``attention``, ``all`` (but the last layer), or patterns of names."""
    every = _candidates(module)
    if on == "attention":
        return [name for name in every if _in_attention(module, name)]
    if on == "all":
        return [name for name in every if name != getattr(module, "head_name", every[-1])]
    patterns = [on] if isinstance(on, str) else list(on)
    return [name for name in every if _matches(name, patterns)]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, f"*{pattern}") for pattern in patterns)


def _candidates(module: nn.Module) -> list[str]:
    """Layers for which there are adapters; not those inside another one."""
    found: list[str] = []
    for name, one in module.named_modules():
        if _fits(one) and name and not (found and name.startswith(f"{found[-1]}.")):
            found.append(name)
    return found


def _in_attention(module: nn.Module, name: str) -> bool:
    """Whether a layer is one of attention's, by the names and classes of what it lies in."""
    pieces = name.split(".")
    owners = [".".join(pieces[:i]) for i in range(1, len(pieces) + 1)]
    told = [*pieces, *(type(module.get_submodule(owner)).__name__ for owner in owners)]
    return any(word in one.lower() for one in told for word in ("attn", "attention"))


def _fits(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.MultiheadAttention) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether it is the layer of transformers' GPT-2, a linear layer whose weight is [in, out]."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _shape(base: nn.Module) -> tuple[int, int]:
    n, m = _two(base.get_parameter("weight"))
    return (m, n) if _is_transposed(base) else (n, m)


def _two(weight: Tensor) -> tuple[int, int]:
    return weight.shape[0], weight.shape[1]
