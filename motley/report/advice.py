"""From numbers to words: what is found, what may help, and why. Each rule is a small function over a description."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from motley.report.description import Description


class Advice(NamedTuple):
    """One finding with its remedy."""

    finding: str  # what was measured
    remedy: str  # what may help
    why: str


Rule = Callable[["Description"], Advice | None]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Adds a rule to the table; the order of the file is the order of the advice."""
    RULES.append(function)
    return function


def advise(description: Description) -> tuple[Advice, ...]:
    """What all rules have to say; one sentence of comfort where they are silent."""
    found = [advice for check in RULES if (advice := check(description)) is not None]
    return tuple(found) or (
        Advice(
            "Clients are alike and dependable",
            "plain FedAvg is a fair choice",
            "there is little heterogeneity to repair, and every remedy costs something",
        ),
    )


def percent(share: float) -> str:
    """A share for people: 0.701 is 70 %."""
    value = 100.0 * share
    if 0 < value < 1:
        return "less than 1 %"
    if 99 < value < 100:
        return "more than 99 %"
    return f"{value:.0f} %"


@rule
def missing_classes(d: Description) -> Advice | None:
    if d.cohorts_missing_a_class < 0.2:
        return None
    return Advice(
        f"{percent(d.cohorts_missing_a_class)} of cohorts miss a class "
        f"({percent(d.classes_missed_by_cohort)} of the classes on average)",
        "consider relaxed balanced softmax or delayed aggregation",
        "classes nobody in the cohort holds are pushed down by plain softmax; a smoothed label prior leaves them alone "
        "(ReBaFL), and models handed from client to client see more classes before they are averaged (RADFed)",
    )


@rule
def label_skew(d: Description) -> Advice | None:
    if d.c_score < 0.5:
        return None
    degree = "strongly" if d.c_score >= 1.0 else "clearly"
    return Advice(
        f"Clients' label mixes differ {degree} from the whole (C-score {d.c_score:.2f} of at most 2)",
        "consider adaptive mixing with the previous model, control variates or a proximal term",
        "clients drift towards their own classes, so the average swings from round to round; mixing damps the swings "
        "(AMA), control variates take the drift out of the gradient (SCAFFOLD), a proximal term limits it (FedProx)",
    )


@rule
def unequal_sizes(d: Description) -> Advice | None:
    if d.gini < 0.4:
        return None
    return Advice(
        f"Data are spread unequally (Gini {d.gini:.2f}; from {d.size_min:,} to {d.size_max:,} samples a client)",
        "consider normalised averaging or a fixed number of local steps",
        "with equal epochs large clients take many more steps, and their models weigh more as well; FedNova divides "
        "each update by its steps",
    )


@rule
def small_clients(d: Description) -> Advice | None:
    if d.clients_below_batch < 0.25:
        return None
    return Advice(
        f"{percent(d.clients_below_batch)} of clients hold less than one minibatch of {d.batch_size}",
        "consider a smaller batch_size or more local epochs",
        "such clients take one step per epoch, with a gradient of few samples",
    )


@rule
def overloaded(d: Description) -> Advice | None:
    share = d.straggler_causes["workload"]
    if share < 0.1:
        return None
    return Advice(
        f"{percent(share)} of clients cannot afford {d.epochs:g} epochs",
        "consider predicted workloads (FedSAE Ira or Fassa), or partial work",
        "a fixed task that devices cannot finish is thrown away; a task that follows what each one managed before "
        "mostly arrives",
    )


@rule
def limited_devices(d: Description) -> Advice | None:
    share = d.straggler_causes["limited"]
    if share < 0.05:
        return None
    return Advice(
        f"{percent(share)} of devices are computing-limited",
        "consider letting them train the classifier only (feature-extractor sharing)",
        "the feature extractor costs most of the time, and differs least between clients (AMA-FES)",
    )


@rule
def slow_devices(d: Description) -> Advice | None:
    late, ratio = d.straggler_causes["deadline"], d.speed_ratio
    if late < 0.1 and (d.deadline is not None or ratio < 3.0):
        return None
    if late >= 0.1:
        finding = f"{percent(late)} of clients are too slow for the deadline of {seconds(d.deadline or 0.0)}"
    else:
        finding = f"Fast devices are {ratio:.1f} times as fast as slow ones, and every round waits for its slowest"
    return Advice(
        finding,
        "consider freezing the first layers on slow devices, a buffered protocol, or a deadline with partial work",
        "frozen layers need no backward pass and no upload (FreezeFL); a buffer takes updates as they come (FedBuff)",
    )


@rule
def late_updates(d: Description) -> Advice | None:
    share = d.straggler_causes["late"]
    if share < 0.05:
        return None
    return Advice(
        f"{percent(share)} of updates arrive rounds too late",
        "consider the late-arrivals protocol with staleness weights (asynchronous AMA)",
        "dropping them loses what those clients know; taken in with a weight that falls with age they still help",
    )


@rule
def dropouts(d: Description) -> Advice | None:
    if d.absence_rate < 0.2:
        return None
    return Advice(
        f"{percent(d.absence_rate)} of clients are away at any time",
        "consider relaxed balanced softmax, or redistribution before aggregation",
        "whom the server reaches is left to chance, so each round speaks for other clients and other classes",
    )


@rule
def losses(d: Description) -> Advice | None:
    if d.loss_rate < 0.05:
        return None
    wanted = round(d.cohort / max(1e-9, 1.0 - d.loss_rate))
    return Advice(
        f"{percent(d.loss_rate)} of updates are lost on the way",
        f"consider choosing more clients than needed ({wanted} to receive {d.cohort})",
        "a lost update cannot be repaired, but it can be planned for",
    )


@rule
def unfair(d: Description) -> Advice | None:
    if d.participation_entropy > 0.9 or d.clients < 2:
        return None
    return Advice(
        f"Few clients give most of the updates (participation entropy {d.participation_entropy:.2f} of 1)",
        "consider a shorter task, or selection that remembers who has contributed (fewest-completed-first)",
        "a model made by the fast and dependable fits the fast and dependable",
    )


@rule
def heavy_transmission(d: Description) -> Advice | None:
    share = d.stages["download"] + d.stages["upload"]
    if share < 0.6:
        return None
    return Advice(
        f"{percent(share)} of a task's time is transmission",
        "consider more local epochs, compression, or sending fewer layers",
        "devices wait for their links, not for their processors",
    )


def seconds(value: float) -> str:
    """A duration for people."""
    for limit, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if value < limit:
            return f"{value / unit:.3g} {name}"
    return f"{value / 86400.0:.3g} days"
