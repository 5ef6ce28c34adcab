"""What torch can map over clients. An operation without a rule for that would be traced once per client: never here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from motley.client.site import Site
from motley.core.errors import TogetherError
from motley.core.in_training import Pass

LONGEST = 60_000  # operations of a traced function, backward pass included; so many take a minute or two


class _Counted(TorchDispatchMode):
    """Ends a trace that grows without end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        if self.seen > LONGEST:
            raise TogetherError(
                f"A step of this model takes more than {LONGEST} operations, which is too long to be traced for all "
                "clients together; use executor=loop or executor=pool, or shorter sequences."
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def one_computation() -> Iterator[None]:
    """Within, what torch could only run client after client is refused, and so is what has no end.

    Attention is computed by its plain equations, for which there are rules.
    """
    functorch: Any = torch._C._functorch
    allowed = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _Counted():
            yield
    except RuntimeError as error:
        operation = re.match(r"(\S+) hit the vmap fallback", str(error))
        if operation is None:
            raise
        raise TogetherError(
            f"The executor 'batched' cannot train this model or part: torch has no rule by which {operation[1]} works "
            "for many clients at once; use executor=loop or executor=pool, or write it in plain tensor operations."
        ) from None
    finally:
        functorch._set_vmap_fallback_enabled(allowed)


def refuse_unmapped(site: Site) -> None:
    """Refuses a model that cannot be run for many clients at once; it is tried on two samples."""
    net, data = site.training.net, site.data.dataset
    if not getattr(site.training.optimizer, "together", True):
        raise TogetherError(
            f"The executor 'batched' cannot train with the optimizer {site.training.optimizer!r}, whose state is "
            "torch's own; use executor=loop or executor=pool, or sgd, adam, adamw, rmsprop, adagrad."
        )
    x = data.inputs(data.x[:2])
    start, zero = net.initial(), torch.zeros((), dtype=torch.int64)
    net.acts(x)

    def outputs(flat: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        out, _ = net.train(net.layout.tensors(flat), some, Pass(zero, zero))
        return out.logits.sum()

    try:
        with one_computation():
            vmap(grad(outputs))(start.expand(2, -1), torch.stack([x, x]))
    except RuntimeError as error:
        raise TogetherError(
            f"The executor 'batched' cannot train this model: {str(error).splitlines()[0].rstrip('.')}; "
            "use executor=loop or executor=pool."
        ) from None


def maps(site: Site) -> bool:
    """Whether a model can be run for many clients at once."""
    try:
        refuse_unmapped(site)
    except TogetherError:
        return False
    return True
