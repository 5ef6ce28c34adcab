"""The methods everything is compared with."""

from __future__ import annotations

from motley.client.correct import control_variates
from motley.client.objective import dynamic_regulariser, proximal
from motley.core.part import Method, compose
from motley.core.ranges import NotNegative, NotNegativeSchedule, Share
from motley.methods.named import METHODS
from motley.server.aggregate import plain_mean
from motley.server.step import mix_with_previous, server_adagrad, server_adam, server_momentum, server_yogi
from motley.server.workload import partial_work


@METHODS.add()
def fedavg(weighted: bool = True) -> Method:
    """Federated averaging, weighted by samples or plain (McMahan et al. 2017)."""
    return compose(*(() if weighted else (plain_mean(),)), name="fedavg")


@METHODS.add()
def fedprox(mu: NotNegativeSchedule = 0.01, partial: bool = True) -> Method:
    """A proximal term, and whatever work a slow device managed is used (Li et al. 2020)."""
    return compose(proximal(mu=mu), *((partial_work(),) if partial else ()), name="fedprox")


@METHODS.add()
def scaffold() -> Method:
    """Control variates against client drift (Karimireddy et al. 2020)."""
    return compose(control_variates(), name="scaffold")


@METHODS.add()
def feddyn(alpha: NotNegative = 0.01) -> Method:
    """Dynamic regularisation (Acar et al. 2021)."""
    return compose(dynamic_regulariser(alpha=alpha), plain_mean(), name="feddyn")


@METHODS.add()
def fedavgm(beta: Share = 0.9, lr: NotNegativeSchedule = 1.0) -> Method:
    """Server momentum (Hsu et al. 2019)."""
    return compose(server_momentum(beta=beta, lr=lr), name="fedavgm")


@METHODS.add()
def fedadam(
    lr: NotNegativeSchedule = 0.01,
    beta1: Share = 0.9,
    beta2: Share = 0.99,
    tau: NotNegative = 1e-3,
    v0: NotNegative | None = None,
) -> Method:
    """Adam on the server (Reddi et al. 2021)."""
    return compose(server_adam(lr=lr, beta1=beta1, beta2=beta2, tau=tau, v0=v0), name="fedadam")


@METHODS.add()
def fedyogi(
    lr: NotNegativeSchedule = 0.01,
    beta1: Share = 0.9,
    beta2: Share = 0.99,
    tau: NotNegative = 1e-3,
    v0: NotNegative | None = None,
) -> Method:
    """Yogi on the server (Reddi et al. 2021)."""
    return compose(server_yogi(lr=lr, beta1=beta1, beta2=beta2, tau=tau, v0=v0), name="fedyogi")


@METHODS.add()
def fedadagrad(
    lr: NotNegativeSchedule = 0.01, beta1: Share = 0.0, tau: NotNegative = 1e-3, v0: NotNegative | None = None
) -> Method:
    """Adagrad on the server (Reddi et al. 2021)."""
    return compose(server_adagrad(lr=lr, beta1=beta1, tau=tau, v0=v0), name="fedadagrad")


@METHODS.add()
def ama(alpha0: Share = 0.1, eta: NotNegative = 2.5e-3, maximum: Share = 0.95) -> Method:
    """Adaptive mixing with the previous global model, alpha = alpha0 + eta * t (Li, Mahmoodi, Lam; eq. 5)."""
    return compose(mix_with_previous(alpha=alpha0, slope=eta, maximum=maximum), name="ama")
