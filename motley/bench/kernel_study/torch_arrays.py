"""Array kernels in torch, on whichever device their tensors lie."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def syrk(alpha: float, beta: float, C: Tensor, A: Tensor) -> Tensor:
    return torch.where(torch.ones_like(C).tril() > 0, torch.addmm(C, A, A.T, beta=beta, alpha=alpha), C)


def gemm(alpha: float, beta: float, C: Tensor, A: Tensor, B: Tensor) -> Tensor:
    return torch.addmm(C, A, B, beta=beta, alpha=alpha)


def atax(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x) @ A


def bicg(A: Tensor, p: Tensor, r: Tensor) -> tuple[Tensor, ...]:
    return r @ A, A @ p


def durbin(r: Tensor) -> Tensor:
    y, back = torch.empty_like(r), r.flip(0)
    alpha, beta = -r[0], torch.ones_like(r[0])
    y[0] = alpha
    n = len(r)
    for k in range(1, n):
        beta = beta * (1.0 - alpha * alpha)
        alpha = -(r[k] + torch.dot(back[n - k :], y[:k])) / beta
        y[:k] += alpha * y[:k].flip(0)
        y[k] = alpha
    return y


def _spread(X: Tensor, Y: Tensor) -> None:
    Y[1:-1, 1:-1] = 0.2 * (X[1:-1, 1:-1] + X[1:-1, :-2] + X[1:-1, 2:] + X[2:, 1:-1] + X[:-2, 1:-1])


def jacobi_2d(steps: int, A: Tensor, B: Tensor) -> tuple[Tensor, ...]:
    A, B = A.clone(), B.clone()
    for _ in range(steps):
        _spread(A, B)
        _spread(B, A)
    return A, B


def _warm(X: Tensor, Y: Tensor) -> None:
    inner = X[1:-1, 1:-1, 1:-1]
    around = X[2:, 1:-1, 1:-1] + X[:-2, 1:-1, 1:-1] + X[1:-1, 2:, 1:-1] + X[1:-1, :-2, 1:-1]
    Y[1:-1, 1:-1, 1:-1] = 0.25 * inner + 0.125 * (around + X[1:-1, 1:-1, 2:] + X[1:-1, 1:-1, :-2])


def heat_3d(steps: int, A: Tensor, B: Tensor) -> tuple[Tensor, ...]:
    A, B = A.clone(), B.clone()
    for _ in range(steps):
        _warm(A, B)
        _warm(B, A)
    return A, B


def spmv(starts: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return torch.segment_reduce(values * x[columns], "sum", offsets=starts, initial=0.0)


def mandelbrot(x: Tensor, y: Tensor, steps: int) -> Tensor:
    c_re, c_im = x.expand(len(y), -1), y[:, None].expand(-1, len(x))
    re, im = torch.zeros_like(c_re), torch.zeros_like(c_re)
    count = torch.zeros(c_re.shape, dtype=torch.int64, device=x.device)
    for _ in range(steps):
        inside = re * re + im * im <= 4.0
        count += inside
        re, im = torch.where(inside, re * re - im * im + c_re, re), torch.where(inside, 2.0 * re * im + c_im, im)
    return count


def cholesky(A: Tensor) -> Tensor:
    A = A.clone()
    for i in range(len(A)):
        for j in range(i):
            A[i, j] = (A[i, j] - torch.dot(A[i, :j], A[j, :j])) / A[j, j]
        A[i, i] = torch.sqrt(A[i, i] - torch.dot(A[i, :i], A[i, :i]))
    return A.tril()


def cholesky2(A: Tensor) -> Tensor:
    return torch.linalg.cholesky(A)


def ludcmp(A: Tensor, b: Tensor) -> Tensor:
    A = A.clone()
    n = len(A)
    for i in range(n):
        for j in range(i):
            A[i, j] = (A[i, j] - torch.dot(A[i, :j], A[:j, j])) / A[j, j]
        for j in range(i, n):
            A[i, j] -= torch.dot(A[i, :i], A[:i, j])
    x, y = torch.empty_like(b), torch.empty_like(b)
    for i in range(n):
        y[i] = b[i] - torch.dot(A[i, :i], y[:i])
    for i in range(n - 1, -1, -1):
        x[i] = (y[i] - torch.dot(A[i, i + 1 :], x[i + 1 :])) / A[i, i]
    return x


def conv2d(images: Tensor, weights: Tensor) -> Tensor:
    made = functional.conv2d(images.permute(0, 3, 1, 2), weights.permute(3, 2, 0, 1))
    return made.permute(0, 2, 3, 1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def arc_distance(theta_1: Tensor, phi_1: Tensor, theta_2: Tensor, phi_2: Tensor) -> Tensor:
    across = torch.cos(theta_1) * torch.cos(theta_2) * torch.sin((phi_2 - phi_1) / 2) ** 2
    half = torch.sin((theta_2 - theta_1) / 2) ** 2 + across
    return 2 * torch.atan2(torch.sqrt(half), torch.sqrt(1 - half))
