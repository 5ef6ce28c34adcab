"""Small runs whose models must stay what they are: one for every protocol, kind of state, fate and mask.

``python -m tests.golden.record`` writes what they give now; `test_golden` compares.
"""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "data": "digits",
    "partition": "classes(per_client=2)",
    "clients": 12,
    "cohort": 4,
    "model": "mlp(hidden=[16])",
    "rounds": 6,
    "epochs": 2.0,
    "batch_size": 16,
    "lr": 0.1,
    "seed": 3,
    "executor": "loop",
}

UNEVEN = "uniform_spread(ratio=6)"
LATE = "uniform_spread(ratio=6)+delay(probability=0.5, maximum_rounds=3)+loss(probability=0.1)"
SLOW = "uniform_spread(ratio=6)+delay(probability=0.5, maximum_seconds=0.05)+loss(probability=0.1)"
CNN = {"model": "cnn_ama(channels=[3, 4], hidden=[12, 10], padding=2)"}

RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg_plain_unequal": {"method": "fedavg(weighted=false)", "partition": "dirichlet(alpha=0.3)"},
    "fedavg_lost_and_away": {"fleet": "bernoulli(p=0.5)+loss(probability=0.3)+crash(probability=0.1)"},
    "fedavg_deadline": {"fleet": UNEVEN, "deadline": 0.006, "partition": "dirichlet(alpha=0.3)"},
    "fedavg_adam": {"optimizer": "adam", "lr": 0.01},
    "stc_uneven": {"method": "stc", "fleet": UNEVEN},
    "sparse_deadline": {"method": "fedavg+largest_changes(share=0.05)", "fleet": UNEVEN, "deadline": 0.006},
    "fedavg_momentum_decay": {"optimizer": "sgd(momentum=0.9, weight_decay=0.001)", "lr": 0.02, "lr_decay": 0.9},
    "fedavg_cnn_augmented": {**CNN, "augment": "crop(padding=1)+mirror", "rounds": 3},
    "fedprox_partial": {"method": "fedprox(mu=0.1)", "fleet": "affordable(low=0.5, high=3)"},
    "scaffold": {"method": "scaffold"},
    "scaffold_lost": {"method": "scaffold", "fleet": "loss(probability=0.3)"},
    "feddyn": {"method": "feddyn(alpha=0.1)"},
    "moon": {"method": "moon(mu=5.0)"},
    "fednova": {"method": "fednova", "partition": "dirichlet(alpha=0.3)"},
    "fedadam": {"method": "fedadam"},
    "fedyogi_momentum": {"method": "fedyogi+ama"},
    "ama": {"method": "ama"},
    "ama_fes": {"method": "ama_fes", "fleet": "limited(fraction=0.5)", **CNN, "rounds": 4},
    "fes_by_layer": {"method": "fes(whole=false)", "fleet": "limited(fraction=0.5)"},
    "naive_fl": {"method": "naive_fl", "fleet": "limited(fraction=0.5)"},
    "fedprox_limited": {"method": "fedprox_limited", "fleet": "limited(fraction=0.5)"},
    "ama_fes_async": {"method": "ama_fes_async", "fleet": "limited(fraction=0.5)+" + LATE},
    "rebafl": {"method": "rebafl", "fleet": "bernoulli(p=0.5)"},
    "rebafl_cnn": {"method": "rebafl(keep_absent=true)", **CNN, "rounds": 3},
    "bsm": {"method": "bsm_fedavg"},
    "fedrs_smoothed": {"method": "fedrs+label_smoothing(eps=0.1)"},
    "fedlc": {"method": "fedlc"},
    "fedbabu": {"method": "fedbabu"},
    "fedasync": {"method": "fedasync", "fleet": SLOW},
    "fedbuff": {"method": "fedbuff(buffer=3)", "fleet": SLOW},
    "safa": {"method": "safa(lag=2)", "fleet": SLOW, "rounds": 4},
    "fedat": {"method": "fedat(tiers=3)", "fleet": UNEVEN},
    "staleness_late": {"method": "scaffold+staleness_weight", "protocol": "late", "fleet": LATE},
    "fedsae_ira": {"method": "fedsae_ira(al=3)", "fleet": "affordable(low=2, high=4)"},
    "fedsae_fassa": {"method": "fedsae_fassa", "fleet": "affordable(low=2, high=4)"},
    "freezefl": {"method": "freezefl(beta=8, restart=2)", "fleet": UNEVEN, "model": "mlp(hidden=[16, 12])"},
    "heterofl": {"method": "heterofl", "fleet": UNEVEN},
    "fjord": {"method": "fjord(selection=true)", "fleet": UNEVEN},
    "oort": {"method": "oort", "fleet": UNEVEN},
    "tifl": {"method": "tifl(tiers=3, interval=2)", "fleet": UNEVEN},
    "fedcs": {"method": "fedcs(seconds=0.01)", "fleet": UNEVEN},
    "rbcs": {"method": "rbcs", "fleet": UNEVEN},
    "power_of_choice": {"method": "power_of_choice"},
    "radfed": {"method": "radfed(S=3)"},
    "radfed_is": {"method": "radfed_is(S=2)", "fleet": "loss(probability=0.2)"},
    "radfeda": {"method": "radfeda(S=2)+scaffold", "fleet": "bernoulli(p=0.3)"},
    "rebafl_on_radfed": {"method": "rebafl+radfed(S=2)"},
}

RESUMED = ("scaffold", "fedbuff", "radfed", "ama_fes_async")
"""These are also broken off after the third round and resumed."""


def recipe(name: str) -> dict[str, Any]:
    return {**BASE, **RUNS[name], "name": name}
