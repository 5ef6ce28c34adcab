"""Executors: who trains the clients of a simulation."""

from motley.run.executors import batched, loop, pool
from motley.run.executors.base import EXECUTORS, Executor, FactsRow, Job

__all__ = ["EXECUTORS", "Executor", "FactsRow", "Job", "batched", "loop", "pool"]
