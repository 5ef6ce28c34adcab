"""Executors: who trains the clients of a run."""

from motley.engine import batched_pool, loop, pool
from motley.engine.executor import EXECUTORS, Executor, make_executor

__all__ = ["EXECUTORS", "Executor", "batched_pool", "loop", "make_executor", "pool"]
