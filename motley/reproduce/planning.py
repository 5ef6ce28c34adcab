"""What to run next when time is short: the runs that are expected to decide most claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from motley.reproduce.campaign import Plan, WantedRun, wanted_runs
from motley.reproduce.claims import pairs_of
from motley.reproduce.comparison import Table, build
from motley.reproduce.reproduction import Cell, Claim, Draw, Reproduction
from motley.reproduce.results import Results

FEW = 3  # seeds that every claim gets before any gets more


@dataclass(frozen=True)
class OpenClaim:
    """A claim that cannot be told yet, and what is expected to tell."""

    text: str
    identities: tuple[str, ...]  # of the missing runs that are expected to decide it; empty: not within the seeds
    first: bool  # it has not yet the few seeds that every claim gets


def open_claims(made: Reproduction, kept: Results, plan: Plan, quick: bool, seeds: list[int] | None) -> list[OpenClaim]:
    """A table's open claims."""
    table = build(made, kept, quick, seeds)
    claims = [claim for claim in made.claims if pairs_of(made, claim, table.runs)]
    found = zip(claims, table.claims, strict=True)
    return [
        _open(made, claim, table, kept, plan, verdict.needed, seeds)
        for claim, verdict in found
        if verdict.holds is None
    ]


def _open(
    made: Reproduction,
    claim: Claim,
    table: Table,
    kept: Results,
    plan: Plan,
    needed: int | None,
    seeds: list[int] | None,
) -> OpenClaim:
    quick = table.quick
    draws = made.draws(quick, seeds)
    cells = list(dict.fromkeys(cell for pair in pairs_of(made, claim, table.runs) for cell in pair))
    few = _missing(made, cells, draws[:FEW], kept, plan, quick)
    if few:
        return OpenClaim(claim.text, few, True)
    wanted = draws[:needed] if needed is not None and needed <= len(draws) else []
    return OpenClaim(claim.text, _missing(made, cells, wanted, kept, plan, quick), False)


def _missing(
    made: Reproduction, cells: Sequence[Cell], draws: Sequence[Draw], kept: Results, plan: Plan, quick: bool
) -> tuple[str, ...]:
    recipes = [plan.placed(made.recipe_of(cell, draw, quick)) for draw in draws for cell in cells]
    return tuple(dict.fromkeys(recipe.identity for recipe in recipes if kept.find(recipe) is None))


def waves(
    made: Sequence[Reproduction], kept: Results, plan: Plan, quick: bool, seeds: list[int] | None
) -> Iterator[tuple[list[WantedRun], str]]:
    """Batches of runs with a sentence each; what a batch gave must be in ``kept`` before the next is asked for.

    First a few seeds for every claim; then more, cheapest verdicts first, while some are expected to be reached within
    the files' seeds; at last whatever else is missing.
    """
    tried: set[str] = set()
    while True:
        missing = {run.recipe.identity: run for run in wanted_runs(made, kept, plan, quick, seeds)}
        left = {key: run for key, run in missing.items() if key not in tried}
        if not left:
            return
        found = [claim for one in made for claim in open_claims(one, kept, plan, quick, seeds)]
        batch = _batch(found, left, 4 * plan.jobs)
        tried |= {run.recipe.identity for run in batch}
        yield batch, _told(found, left)


def _batch(found: Sequence[OpenClaim], left: dict[str, WantedRun], size: int) -> list[WantedRun]:
    """The next runs to make, in the order of `wanted_runs` within a stage."""
    if few := _wanted(filter(_is_first, found), left):
        return [run for key, run in left.items() if key in few]
    chosen: dict[str, WantedRun] = {}
    for claim in sorted(found, key=lambda one: len(one.identities)):
        if len(chosen) < size:
            chosen.update((key, left[key]) for key in claim.identities if key in left)
    return list((chosen or left).values())


def _is_first(claim: OpenClaim) -> bool:
    return claim.first


def _told(found: Sequence[OpenClaim], left: dict[str, WantedRun]) -> str:
    first = [claim for claim in found if claim.first]
    later = [claim for claim in found if not claim.first and claim.identities]
    few, runs = _wanted(first, left), _wanted(later, left)
    beyond = len(found) - len(first) - len(later)
    return (
        f"{len(found)} claims are open: {len(first)} have fewer than {FEW} seeds ({len(few)} "
        f"runs), {len(later)} are expected to be decided by {len(runs)} more runs, {beyond} not by the files' seeds."
    )


def _wanted(claims: Iterable[OpenClaim], left: dict[str, WantedRun]) -> set[str]:
    """The runs among those left that claims wait for."""
    return {key for claim in claims for key in claim.identities if key in left}
