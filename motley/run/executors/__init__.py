"""Executors: who trains the clients of a simulation."""

from motley.run.executors import batched, crew, loop, pool
from motley.run.executors.base import EXECUTORS, Executor, FactsRow, Job

__all__ = ["EXECUTORS", "Executor", "FactsRow", "Job", "batched", "crew", "loop", "pool"]
