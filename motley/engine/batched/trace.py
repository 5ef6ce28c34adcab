"""Client functions traced once per shape into plain tensor operations, and captured as CUDA graphs on a GPU.

Tracing removes the bookkeeping of `vmap` and `grad` from every call; a captured graph removes the launches as well.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._pytree import TreeSpec, _broadcast_to_and_flatten, tree_flatten, tree_unflatten

from motley.engine.batched.fuse_updates import fuse_updates
from motley.engine.batched.mapping import one_computation
from motley.engine.batched.passes import PRIME, quicken, simplify, widen, written

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


def width_key(tree: Any, axes: Any) -> Hashable:
    """`shape_key` without the width of the leaves that have a client axis."""
    leaves, spec = tree_flatten(tree)
    wide = _wide(axes, spec)
    shapes = (tuple(leaf.shape[1:] if w else leaf.shape) for leaf, w in zip(leaves, wide, strict=True) if _is(leaf))
    return spec, tuple(wide), tuple(shapes), tuple(leaf.dtype if _is(leaf) else leaf for leaf in leaves)


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _wide(axes: Any, spec: TreeSpec) -> list[bool]:
    """Which leaves have a client axis, from a prefix of the tree with 0 there and None elsewhere."""
    flat = _broadcast_to_and_flatten(axes, spec)
    assert flat is not None
    return [axis == 0 for axis in flat]


class Traced:
    """A function of trees as a flat list of tensor operations.

    With ``axes`` (a prefix of the arguments' tree: 0 where leaves have a client axis, None where not) the graph runs at
    every width, not only at the example's.
    """

    def __init__(self, function: Callable[..., Any], *example: Any, axes: Any = None) -> None:
        leaves, spec = tree_flatten(example)
        self._out_spec: Any = None

        def flat(*tensors: Tensor) -> list[Tensor]:
            out_leaves, self._out_spec = tree_flatten(function(*tree_unflatten(tensors, spec)))
            return out_leaves

        wide = None if axes is None else _wide(axes, spec)
        with torch.no_grad(), one_computation():
            self._graph = make_fx(flat)(*leaves) if wide is None else _traced_wide(flat, leaves, wide)
        _fold_constants(self._graph)
        simplify(self._graph)
        fuse_updates(self._graph)
        quicken(self._graph)
        # from the leaves of the arguments to the leaves of the result
        self.flat: Callable[..., list[Tensor]] = self._graph.forward

    @property
    def operations(self) -> list[Node]:
        """What the graph consists of."""
        return list(self._graph.graph.nodes)

    def __call__(self, *args: Any) -> Any:
        leaves, _ = tree_flatten(args)
        with torch.no_grad():
            return tree_unflatten(self.flat(*leaves), self._out_spec)


def _traced_wide(flat: Callable[..., list[Tensor]], leaves: list[Any], wide: list[bool]) -> GraphModule:
    """Traces without computing, at a width that no other size can be mistaken for."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def stand_in(leaf: Any, w: bool) -> Any:
        if not _is(leaf):
            return leaf
        with mode:
            shape = (PRIME, *leaf.shape[1:]) if w else tuple(leaf.shape)
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device)

    made = make_fx(flat, _allow_non_fake_inputs=True)(*(stand_in(x, w) for x, w in zip(leaves, wide, strict=True)))
    widen(made, wide.index(True))
    return made


FOLDED_BYTES = 1 << 26


def _fold_constants(module: GraphModule) -> None:
    """Computes once what does not depend on the arguments (index tables, constants moved to a device)."""
    known: dict[Node, Any] = {}
    touched = written(module)
    for node in list(module.graph.nodes):
        if node in touched:
            continue
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
        constant.meta["val"] = value  # later passes ask for shapes
        known[constant] = value
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    op = node.target
    assert isinstance(op, OpOverload)
    changes = op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    return not changes and all(inner in known for inner in node.all_input_nodes)


@contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, which may free another graph; CUDA forbids that while one is recorded."""
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


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
        with no_collection(), torch.cuda.graph(self._graph, pool=pool):
            function()
        undo()

    def __call__(self) -> None:
        self._graph.replay()
