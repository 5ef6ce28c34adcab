"""The kernel of the cross-entropy against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value, vmap

from motley.engine.batched.trace import Traced
from motley.engine.kernels.cross_entropy_op import ClientLoss
from tests.kernels import DEVICE, needs_kernels

pytestmark = needs_kernels


@pytest.mark.parametrize(("batch", "classes"), [(10, 10), (1, 2), (7, 62), (16, 32), (50, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_cross_entropy(batch: int, classes: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(batch)
    logits = 5 * torch.randn(3, batch, classes, generator=generator)
    logits[:, :, -1] -= 1e9  # a class that must not be predicted
    y = torch.randint(0, classes - 1, (3, batch), generator=generator)
    mask = (torch.rand(3, batch, generator=generator) < 0.6).float()
    mask[1] = 0.0
    share = mask / mask.sum(-1, keepdim=True).clamp_min(1.0) if masked else torch.full((3, batch), 1 / batch)

    def ours(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
        loss: Tensor = ClientLoss.apply(logits, y, share if masked else None)[0]
        return loss

    def theirs(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return (F.cross_entropy(logits, y, reduction="none") * share).sum()

    given = [tensor.to(DEVICE) for tensor in (logits, y, share)]
    step = vmap(grad_and_value(ours))
    traced = Traced(step, *given)
    names = [str(node.target) for node in traced.operations]
    assert not any("mul" in name or "ones" in name for name in names), "the gradient is used as it comes"
    for found in (step(*given), traced(*given)):
        for i in range(3):
            slope, loss = grad_and_value(theirs)(logits[i], y[i], share[i])
            torch.testing.assert_close(found[0][i].cpu(), slope, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(found[1][i].cpu(), loss, atol=1e-6, rtol=1e-5)


def test_what_is_made_of_the_loss_counts() -> None:
    logits, y = torch.randn(2, 4, 3, device=DEVICE), torch.tensor([[0, 1, 2, 0]] * 2, device=DEVICE)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        found: Tensor = ClientLoss.apply(logits, y, None)[0]
        return found**2

    slopes = vmap(grad_and_value(loss))(logits, y)[0]
    for i in range(2):
        wanted = grad_and_value(lambda z, i=i: F.cross_entropy(z, y[i].cpu()) ** 2)(logits[i].cpu())[0]
        torch.testing.assert_close(slopes[i].cpu(), wanted, atol=1e-6, rtol=1e-5)
