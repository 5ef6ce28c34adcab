"""Numbers as people read them."""

from __future__ import annotations


def per_cent(value: float, interval: float | None = None) -> str:
    """A fraction as a person reads it: 93.4 %, or 93.4 ± 0.8 %."""
    return f"{100 * value:.1f} %" if interval is None else f"{100 * value:.1f} ± {100 * interval:.1f} %"


SHARES = ("accuracy", "macro_f1", "weighted_f1", "auc", "average_precision")
"""Scores that people read in percent."""


def score_text(name: str, value: float, interval: float | None = None) -> str:
    """A score as a person reads it: shares in percent, others as numbers."""
    if name.removeprefix("best_") in SHARES:
        return per_cent(value, interval)
    return f"{value:.4g}" if interval is None else f"{value:.4g} ± {interval:.2g}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.1f} MB"
