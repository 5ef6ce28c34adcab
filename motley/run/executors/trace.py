"""Client functions traced once per shape into plain tensor operations, and captured as CUDA graphs on a GPU.

Tracing removes the bookkeeping of `vmap` and `grad` from every call; a captured graph removes the launches as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used things by key, at most ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        made = self.items[key] = make()
        while len(self.items) > self.limit:
            self.items.popitem(last=False)
        return made


def shape_key(tree: Any) -> Hashable:
    """What a trace depends on: structure, shapes, types."""
    leaves, spec = tree_flatten(tree)
    return spec, tuple((tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)


class Traced:
    """A function of trees as a flat list of tensor operations."""

    def __init__(self, function: Callable[..., Any], *example: Any, compiled: bool = False) -> None:
        leaves, spec = tree_flatten(example)
        self._out_spec: Any = None

        def flat(*tensors: Tensor) -> list[Tensor]:
            out_leaves, self._out_spec = tree_flatten(function(*tree_unflatten(tensors, spec)))
            return out_leaves

        with torch.no_grad():
            self._graph = make_fx(flat)(*leaves)
        self._graph.graph.eliminate_dead_code()
        self._graph.recompile()
        run = torch.compile(self._graph, dynamic=False) if compiled else self._graph.forward
        self.flat: Callable[..., list[Tensor]] = run  # from the leaves of the arguments to the leaves of the result

    def __call__(self, *args: Any) -> Any:
        leaves, _ = tree_flatten(args)
        with torch.no_grad():
            return tree_unflatten(self.flat(*leaves), self._out_spec)


class Captured:
    """A function without arguments that reads and writes fixed buffers, recorded as a CUDA graph.

    ``keep`` holds everything the graph reads: it must outlive the graph.
    """

    def __init__(self, function: Callable[[], None], keep: Any, restore: Callable[[], Any], pool: Any = None) -> None:
        self._keep = (function, keep)
        undo = restore()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            function()
        undo()

    def __call__(self) -> None:
        self._graph.replay()
