"""What a module does in training beside computing: it draws at random, and its batch norm follows running statistics.

Both are taken out of torch's hands while a module runs. Draws come from the key of the client and the step, row by row,
so that every engine drops the same units, however minibatches are padded. Running statistics are part of the flat
vector of a model: a pass gives them anew, and rows that are padding do not count.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from motley.core.errors import DataError
from motley.core.keys import fold_in, normal, uniform

WORD = 0x6D6F64756C65


class Pass(NamedTuple):
    """A forward pass of training: whose it is, and which rows count."""

    key: Tensor  # of the client in this round
    step: Tensor  # minibatch steps taken before it
    call: int = 0  # passes within the step before it
    mask: Tensor | None = None  # [B] 1 where a row counts; None: all do

    @property
    def draws(self) -> Tensor:
        """The key of what is drawn in it."""
        return fold_in(fold_in(fold_in(self.key, WORD), self.step), self.call)


class Watched(TorchFunctionMode):
    """While it is on, functions that draw take their draws from the pass, and batch norm follows ``statistics``.

    statistics: the tensors that stand in for running statistics, by where they are in the flat vector; new ones are
    found in ``found`` afterwards. Batch norm with other running statistics is held: it uses them and leaves them.
    """

    def __init__(self, one: Pass, rows: int, statistics: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.one, self.rows = one, rows
        self.statistics = statistics
        self.place = {id(tensor): place for place, tensor in statistics.items()}
        self.found: dict[int, Tensor] = {}
        self.seen = 0  # calls of functions with a rule
        self._draws: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = RULES.get(func)
        return func(*args, **(kwargs or {})) if rule is None else rule(self, *args, **(kwargs or {}))

    # ------------------------------------------------------------------ draws
    def _next(self, shape: tuple[int, ...], draw: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
        """Numbers of a shape, which depend on the row and not on how many rows there are."""
        if self._draws is None:
            self._draws = self.one.draws
        self.seen += 1
        key = fold_in(self._draws, self.seen)
        if len(shape) > 1 and shape[0] % self.rows and shape[1] % self.rows == 0:
            return draw(key, (shape[1], shape[0], *shape[2:])).transpose(0, 1)
        return draw(key, shape)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return self._next(shape, uniform)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self._next(shape, normal)

    def kept(self, shape: tuple[int, ...], share: float, like: Tensor) -> Tensor:
        """1 / (1 - share) where a unit stays, 0 where it is dropped."""
        if share >= 1.0:
            return like.new_zeros(shape)
        return (self.uniform(shape) >= share).to(like.dtype) / (1.0 - share)

    # ------------------------------------------------------------------ batch norm
    def now(self, place: int) -> Tensor:
        """A running statistic; a layer that is called twice goes on from its own."""
        return self.found.get(place, self.statistics[place])

    def weights(self, x: Tensor) -> Tensor | None:
        """What each row of a layer's input counts, with the shape of that input."""
        mask = self.one.mask
        if mask is None or x.shape[0] % len(mask):
            return None
        return mask.repeat_interleave(x.shape[0] // len(mask)).view(-1, *[1] * (x.dim() - 1)).to(torch.float32)


def _mapped() -> bool:
    """Whether this runs for many clients at once."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def _batch_norm(
    w: Watched,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm by the rows that count. A channel with one value alone has no variance: it is normed by the running
    statistics, and leaves them as they are."""
    own = [w.place[id(one)] for one in (running_mean, running_var) if id(one) in w.place]
    if not training or (running_mean is not None and not own):
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    w.seen += 1
    before = _Moments(*map(w.now, own)) if own else None
    counted = w.weights(x)
    way = _native if counted is None and _is_quick(x) else _plain
    made, after = way(x, counted, before, weight, bias, momentum, eps)
    w.found.update(zip(own, after or (), strict=True))
    return made


class _Moments(NamedTuple):
    """Running statistics of channels: [C] each."""

    mean: Tensor
    var: Tensor


def _is_quick(x: Tensor) -> bool:
    """Whether torch's own kernel can take it."""
    return x.dtype == torch.float32 and x.numel() > x.shape[1] and not _mapped()


def _native(
    x: Tensor,
    _: Tensor | None,
    before: _Moments | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, _Moments | None]:
    after = None if before is None else _Moments(*(old.detach().clone() for old in before))
    mean, var = after or (None, None)
    return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps), after


def _plain(
    x: Tensor,
    counted: Tensor | None,
    before: _Moments | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, _Moments | None]:
    """The same in plain operations, which can be mapped over clients and leave out rows that are padding."""
    values = x.to(torch.float32)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    n, mean, var = _moments(values, counted)
    after = None
    if before is not None:
        several = n > 1.0
        fresh = (mean, var * (n / (n - 1.0).clamp_min(1.0)))
        after = _Moments(*(
            torch.where(several, old + momentum * (now - old), old).detach()
            for old, now in zip(before, fresh, strict=True)
        ))  # fmt: skip
        mean, var = (torch.where(several, now, old.detach()) for now, old in zip((mean, var), before, strict=True))
    made = (values - mean.view(shape)) * torch.rsqrt(var + eps).view(shape)
    if weight is not None:
        made = made * weight.view(shape)
    if bias is not None:
        made = made + bias.view(shape)
    return made.to(x.dtype), after


def _moments(values: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of each channel: how many values count, their mean, and their mean squared distance from it."""
    dims = [0, *range(2, values.dim())]
    shape = [1, -1, *[1] * (values.dim() - 2)]
    spots = values.numel() // values.shape[0] // values.shape[1]
    if counted is None:
        mean = values.mean(dims)
        n = torch.tensor(float(values.shape[0] * spots), device=values.device)
        return n, mean, (values - mean.view(shape)).square().mean(dims)
    n = counted.sum() * spots
    mean = (values * counted).sum(dims) / n.clamp_min(1.0)
    return n, mean, ((values - mean.view(shape)).square() * counted).sum(dims) / n.clamp_min(1.0)


# ------------------------------------------------------------------ functions that draw
def _dropout(w: Watched, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return x * w.kept(tuple(x.shape), p, x) if training and p > 0 else x


def _dropout_of_torch(w: Watched, x: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(w, x, p, train)


def _feature_dropout(w: Watched, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels: one draw for each of the first two dimensions."""
    if not training or p <= 0:
        return x
    return x * w.kept(tuple(x.shape[:2]), p, x).view(*x.shape[:2], *[1] * (x.dim() - 2))


def _alpha_dropout(w: Watched, x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropped units take the lowest value of SELU, and mean and variance stay as they were (Klambauer et al., 2017)."""
    if not training or p <= 0:
        return x
    low = -1.7580993408473766
    stays = (w.uniform(tuple(x.shape)) >= p).to(x.dtype)
    scale = ((1.0 - p) * (1.0 + p * low**2)) ** -0.5
    return scale * (x * stays + low * (1.0 - stays)) - scale * p * low


def _attention(
    w: Watched,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Tensor:
    if dropout_p <= 0:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **others)
    if others.pop("enable_gqa", False):
        _refuse("attention with dropout and grouped keys")
    scale = others.pop("scale", None) or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, float("-inf"))
    if attn_mask is not None:
        no = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf")) if no else scores + attn_mask
    return _dropout(w, scores.softmax(-1), dropout_p) @ value


def _multi_head(w: Watched, *args: Any, **kwargs: Any) -> Any:
    """torch's own function, in which attention and dropout are ours."""
    ours = {
        "dropout": lambda *a, **k: _dropout(w, *a, **k),
        "scaled_dot_product_attention": lambda *a, **k: _attention(w, *a, **k),
        "has_torch_function": lambda *_: False,
    }
    original = F.multi_head_attention_forward
    twin = types.FunctionType(original.__code__, {**vars(F), **ours}, None, original.__defaults__, original.__closure__)
    twin.__kwdefaults__ = original.__kwdefaults__
    return twin(*args, **kwargs)


def _shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else tuple(args)


def _like(draw: str) -> Callable[..., Tensor]:
    def rule(w: Watched, x: Tensor, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        found: Tensor = getattr(w, draw)(tuple(x.shape))
        return found.to(dtype=dtype or x.dtype, device=device or x.device)

    return rule


def _made(draw: str) -> Callable[..., Tensor]:
    def rule(w: Watched, *size: Any, dtype: Any = None, device: Any = None, **others: Any) -> Tensor:
        if others.get("generator") is not None:
            _refuse("a generator of its own")
        found: Tensor = getattr(w, draw)(_shape(size or (others["size"],)))
        return found.to(dtype=dtype or torch.get_default_dtype(), device=device or found.device)

    return rule


def _bernoulli(w: Watched, x: Tensor, p: float | None = None, **_: Any) -> Tensor:
    return (w.uniform(tuple(x.shape)) < (x if p is None else p)).to(x.dtype)


def _bernoulli_(w: Watched, x: Tensor, p: float | Tensor = 0.5, **_: Any) -> Tensor:
    return x.copy_((w.uniform(tuple(x.shape)) < p).to(x.dtype))


def _uniform_(w: Watched, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return x.copy_((low + (high - low) * w.uniform(tuple(x.shape))).to(x.dtype))


def _normal_(w: Watched, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return x.copy_((mean + std * w.normal(tuple(x.shape))).to(x.dtype))


def _refuse(what: str) -> NoReturn:
    raise DataError(
        f"The model draws by {what} from a generator that no other engine can repeat; draw by torch.rand, torch.randn "
        "or dropout, which take the keys of the run."
    )


def _refused(name: str) -> Callable[..., NoReturn]:
    def rule(w: Watched, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(name)

    return rule


_OTHER_DRAWS = {
    "torch": ("randperm", "randint", "randint_like", "multinomial", "poisson", "normal", "rrelu"),
    "torch.nn.functional": ("rrelu", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"),
    "torch.Tensor": ("exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "multinomial"),
}
_HOMES: dict[str, Any] = {"torch": torch, "torch.nn.functional": F, "torch.Tensor": Tensor}

RULES: dict[Any, Callable[..., Any]] = {
    **{
        getattr(_HOMES[home], name): _refused(f"{home}.{name}")
        for home, names in _OTHER_DRAWS.items()
        for name in names
        if hasattr(_HOMES[home], name)
    },
    F.batch_norm: _batch_norm,
    F.dropout: _dropout,
    torch.dropout: _dropout_of_torch,
    F.dropout1d: _feature_dropout,
    F.dropout2d: _feature_dropout,
    F.dropout3d: _feature_dropout,
    F.alpha_dropout: _alpha_dropout,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    torch.rand: _made("uniform"),
    torch.randn: _made("normal"),
    torch.rand_like: _like("uniform"),
    torch.randn_like: _like("normal"),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
}
"""What takes the place of torch's functions while a module is watched: ``rule(watched, *arguments)``."""
