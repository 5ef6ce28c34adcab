"""A step of SGD of many clients in place, as one Triton kernel; for a large linear layer together with its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.acceleration import Kernel, offer, usable


@torch.library.custom_op("motley::sgd_", mutates_args=("params", "velocity"))
def sgd_(params: Tensor, velocity: Tensor | None, grad: Tensor, lr: Tensor, momentum: float, decay: float) -> None:
    """``v = momentum * v + (g + decay * w);  w = w - lr * v``: params, velocity and grad [K, N], lr [K, 1].

    Rows may lie apart, but each is contiguous. velocity: None without momentum.
    """
    from motley.engine.kernels import sgd_kernels

    sgd_kernels.plain(params, velocity, grad, lr, momentum, decay)


@torch.library.custom_op("motley::sgd_product_", mutates_args=("params", "velocity"))
def sgd_product_(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str,
) -> None:  # fmt: skip
    """`sgd_` for weights [O, D] of a linear layer, from its input [K, B, D] and its output's gradient [K, B, O]."""
    from motley.engine.kernels import sgd_kernels

    sgd_kernels.by_product(params, velocity, x, grad, lr, momentum, decay, precision)


@torch.library.custom_op("motley::sgd_product_input_", mutates_args=("params", "velocity"))
def sgd_product_input_(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str,
) -> Tensor:  # fmt: skip
    """`sgd_product_`, and the gradient of the layer's input [K, B, D]; weights are read once for both."""
    from motley.engine.kernels import sgd_kernels

    back = torch.empty_like(x)
    sgd_kernels.by_product(params, velocity, x, grad, lr, momentum, decay, precision, back)
    return back


@torch.library.custom_op("motley::sgd_pieces_", mutates_args=("params", "velocity"))
def sgd_pieces_(
    params: Tensor, velocity: Tensor | None, grads: list[Tensor], starts: list[int], lr: Tensor, momentum: float,
    decay: float,
) -> None:  # fmt: skip
    """`sgd_` for pieces of params [K, P]: grads[i] [S, K, N], summed over S, is for the N columns from starts[i]."""
    from motley.engine.kernels import sgd_kernels

    sgd_kernels.by_pieces(params, velocity, grads, starts, lr, momentum, decay)


@sgd_.register_fake
def _(params: Tensor, velocity: Tensor | None, grad: Tensor, lr: Tensor, momentum: float, decay: float) -> None:
    pass


@sgd_product_.register_fake
def _(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str,
) -> None:  # fmt: skip
    pass


@sgd_product_input_.register_fake
def _(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str,
) -> Tensor:  # fmt: skip
    return torch.empty_like(x)


@sgd_pieces_.register_fake
def _(
    params: Tensor, velocity: Tensor | None, grads: list[Tensor], starts: list[int], lr: Tensor, momentum: float,
    decay: float,
) -> None:  # fmt: skip
    pass


offer("sgd", Kernel(usable, sgd_, "steps of SGD with momentum and weight decay, any problem, on a GPU"))
