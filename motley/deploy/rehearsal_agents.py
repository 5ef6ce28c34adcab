"""Agents of a rehearsal: as many in one process as one likes, trained by one thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from motley.deploy.agent_phases import NewStation
from motley.deploy.agent_process import AgentProcess, Manner
from motley.deploy.agent_training import InThread
from motley.deploy.stations import OneStation, Station
from motley.runtime.experiment import Experiment


async def run_agents(lines: dict[int, str], folder: Path) -> None:
    """Takes the seats that invitations offer, and takes part until the run has ended."""
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(1, thread_name_prefix="train")
    known: dict[str, Experiment] = {}
    try:
        await asyncio.gather(*(_one(seat, line, folder, pool, known) for seat, line in lines.items()))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


async def _one(seat: int, line: str, folder: Path, pool: ThreadPoolExecutor, known: dict[str, Experiment]) -> None:
    process = _Sharing(folder / str(seat), Manner(name=f"agent-{seat}", rehearsal=True), known)
    member, e = await process.join(line)
    await process.take_part(member, e, process.stations(member, e, in_thread(pool)))


def in_thread(pool: ThreadPoolExecutor) -> NewStation:
    """Stations that train in one thread for all."""
    return lambda e: OneStation(Station.of(e, InThread(e.site, pool)))


class _Sharing(AgentProcess):
    """An agent that shares what is the same for all of them, to save memory."""

    def __init__(self, folder: Path, manner: Manner, known: dict[str, Experiment]) -> None:
        super().__init__(folder, manner)
        self._known = known

    def experiment(self, text: str, seat: int, classes: int) -> Experiment:
        if text not in self._known:
            self._known[text] = super().experiment(text, seat, classes)
        return self._known[text]
