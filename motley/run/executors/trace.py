"""Client functions traced once per shape into plain tensor operations, and captured as CUDA graphs on a GPU.

Tracing removes the bookkeeping of `vmap` and `grad` from every call; a captured graph removes the launches as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
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
        _fold_constants(self._graph)
        self._graph.graph.eliminate_dead_code()
        self._graph.recompile()
        run = torch.compile(self._graph, dynamic=False) if compiled else self._graph.forward
        self.flat: Callable[..., list[Tensor]] = run  # from the leaves of the arguments to the leaves of the result

    def __call__(self, *args: Any) -> Any:
        leaves, _ = tree_flatten(args)
        with torch.no_grad():
            return tree_unflatten(self.flat(*leaves), self._out_spec)


FOLDED_BYTES = 1 << 26


def _fold_constants(module: GraphModule) -> None:
    """Computes once what does not depend on the arguments (index tables, constants moved to a device)."""
    known: dict[Node, Any] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            known[node] = getattr(module, str(node.target))
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or not _foldable(node, known):
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda inner: known[inner])
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        if not isinstance(value, Tensor) or value.numel() * value.element_size() > FOLDED_BYTES:
            continue
        name = f"_folded_{len(known)}"
        module.register_buffer(name, value.contiguous(), persistent=False)
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        known[constant] = value
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    op = node.target
    assert isinstance(op, OpOverload)
    changes = op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    written = any(isinstance(user.target, OpOverload) and user.target._schema.is_mutable for user in node.users)
    return not changes and not written and all(inner in known for inner in node.all_input_nodes)


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
