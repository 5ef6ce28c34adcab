"""A deployment within one process: a real broker, a server, and agents, over the real line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from motley.deploy.agent_process import AgentProcess, Manner
from motley.deploy.broker import free_port
from motley.deploy.rehearsal_agents import in_thread
from motley.deploy.server_process import ServerProcess, Settings, invite, new_federation, new_server
from motley.runtime.experiment import Experiment, prepare
from motley.runtime.launch import Result
from motley.runtime.recipe import Recipe, load

TINY: dict[str, Any] = {
    "clients": 4,
    "cohort": 3,
    "rounds": 3,
    "model": "logistic",
    "executor": "loop",
    "partition": "iid",
    "batch_size": 256,
    "evaluate_every": 3,
    "method": "fedavg",
}


def tiny(**changes: Any) -> Recipe:
    return load("digits", {**TINY, **changes})


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {"beat": 0.3, "lease": 1e6, "rehearsal": True, **changes}
    return Settings(new_federation(), "127.0.0.1", free_port(), ("127.0.0.1",), **given)


async def take_part(folder: Path, line: str, pool: ThreadPoolExecutor, manner: Manner | None = None) -> AgentProcess:
    """An agent from its invitation to the run's end."""
    process = AgentProcess(folder, manner or Manner(name=folder.name, rehearsal=True))
    member, e = await process.join(line)
    await process.take_part(member, e, process.stations(member, e, in_thread(pool)))
    return process


class Field:
    """A server and its agents in folders of their own."""

    def __init__(self, recipe: Recipe, folder: Path, **how: Any) -> None:
        self.recipe, self.folder = recipe, folder / "run"
        self.e: Experiment = prepare(recipe)
        self.settings = settings(**how)
        new_server(recipe, self.folder, self.settings)
        self.server = ServerProcess(self.e, self.folder)
        self.manners: dict[int, Manner] = {}

    def run(self, meanwhile: Callable[[Field], Any] | None = None) -> Result:
        """Carries the run out; ``meanwhile`` is a coroutine that goes on beside it."""
        return asyncio.run(asyncio.wait_for(self._run(meanwhile), 60.0))

    async def _run(self, meanwhile: Callable[[Field], Any] | None) -> Result:
        with ThreadPoolExecutor(1) as pool:
            serving = asyncio.create_task(self.server.run())
            seats = range(self.recipe.clients or 0)
            agents = [asyncio.create_task(self._agent(seat, pool)) for seat in seats]
            beside = [] if meanwhile is None else [asyncio.create_task(meanwhile(self))]
            try:
                await asyncio.wait([serving, *agents, *beside], return_when=asyncio.FIRST_EXCEPTION)
                for one in (*agents, *beside):
                    if one.done():
                        one.result()
                result = await serving
                self.agents = await asyncio.gather(*agents)
            finally:
                for task in (serving, *agents, *beside):
                    task.cancel()
                await asyncio.gather(serving, *agents, *beside, return_exceptions=True)
        return result

    async def _agent(self, seat: int, pool: ThreadPoolExecutor) -> AgentProcess:
        line = invite(self.folder, seat, f"agent-{seat}").to_line()
        return await take_part(self.folder.parent / f"agent-{seat}", line, pool, self.manners.get(seat))
