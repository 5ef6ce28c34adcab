"""What is done to a traced graph: operations that change nothing are dropped, and one trace serves every width.

A trace records the number of clients in the shapes of views and sums. It is made with a width that nothing else has
(a large prime), so that every number in it that the prime divides is a multiple of the width, and can be computed from
the width at hand when the graph runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

PRIME = 1_000_003
aten = torch.ops.aten

_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.slice.Tensor, aten.alias.default}
_RESHAPES |= {aten.detach.default}
_SHAPINGS = {*_RESHAPES, aten.unsqueeze.default, aten.permute.default}


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape a traced value had."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _kind(node: Any) -> tuple[Any, ...]:
    """The shape and type of a traced value."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (node,)


def written(module: GraphModule) -> set[Node]:
    """Tensors that are written in place later on, by themselves or through a view of them."""
    found: set[Node] = set()
    waiting = [node.all_input_nodes[0] for node in module.graph.nodes if _schema(node, "is_mutable")]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes[:1] if is_view(node) else [])
    return found


def _schema(node: Node, what: str) -> Any:
    return getattr(node.target._schema, what) if isinstance(node.target, OpOverload) else None


def is_view(node: Node) -> bool:
    return any(result.alias_info is not None for result in _schema(node, "returns") or ())


def _beside_ones(product: Node, touched: set[Node]) -> Any:
    """The factor that a product repeats, because the other one is all ones."""
    ones = [_is_ones(factor, touched) for factor in product.args]
    other = product.args[ones.index(True) - 1] if True in ones else None
    return other if _kind(other) == _kind(product) and not touched & {product, other} else None


def _is_ones(node: Any, touched: set[Node]) -> bool:
    """Whether a value consists of ones that are never written."""
    while isinstance(node, Node) and node.target in _SHAPINGS:
        node = node.args[0]
    return isinstance(node, Node) and node.target is aten.ones_like.default and node not in touched


def _is_same(node: Node, touched: set[Node]) -> Any:
    """The node whose value this one repeats, or None."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if node.target is aten.mul.Tensor:
        return _beside_ones(node, touched)
    times_one = node.target is aten.mul.Scalar and node.args[1] == 1
    if times_one or (node.target is aten.permute.default and node.args[1] == sorted(node.args[1])):  # type: ignore[arg-type]
        return source
    if node.target is aten.transpose.int:
        back = source.target is aten.transpose.int and set(source.args[1:]) == set(node.args[1:])
        return source.args[0] if back else None
    if node.target in _RESHAPES and shape_of(source) is not None and shape_of(source) == shape_of(node):
        return source
    return None


def simplify(module: GraphModule) -> None:
    """Drops reshapes to the shape a tensor has, permutations that change nothing, and products with ones."""
    touched = written(module)
    for node in list(module.graph.nodes):
        same = _is_same(node, touched)
        if same is not None:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def widen(module: GraphModule, place: int, prime: int = PRIME) -> None:
    """Makes a graph traced at width ``prime`` run at any: the width is that of its argument number ``place``."""
    graph = module.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(arguments[-1]):
        width = graph.call_function(aten.sym_size.int, (arguments[place], 0))
    scaled: dict[int, Node] = {1: width}
    change = _scaler(graph, width, scaled, prime)
    for node in list(graph.nodes):
        if node.op == "call_function" and node is not width and node not in scaled.values():
            node.args = tuple(torch.fx.node.map_aggregate(node.args, change))
            node.kwargs = dict(torch.fx.node.map_aggregate(node.kwargs, change))
    module.recompile()


def _scaler(graph: Graph, width: Node, scaled: dict[int, Node], prime: int) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value % prime or value >= 1 << 62:
            return value
        times = value // prime
        if times not in scaled:
            with graph.inserting_after(width):
                scaled[times] = graph.call_function(operator.mul, (width, times))
        return scaled[times]

    return change


# Operations whose Python binding takes what the traced operation takes; calling it costs a third.
_FUNCTIONS = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "sigmoid", "tanh", "relu", "maximum", "minimum"),
        *("eq", "ne", "lt", "le", "gt", "ge", "where", "clamp_min", "addcmul", "bmm", "mm", "sum", "mean", "cat"),
        *("index_select", "gather", "split_with_sizes", "ones_like", "zeros_like"),
        *("_log_softmax", "_log_softmax_backward_data"),
    )
)
_METHODS = {"view": "view", "_unsafe_view": "view", "expand": "expand", "transpose": "transpose", "permute": "permute"}
_METHODS |= {name: name for name in ("unsqueeze", "addcmul_", "add_", "sub_", "mul_", "copy_")}


def quicken(module: GraphModule) -> None:
    """Calls operations by their shortest way; a small step is mostly the cost of calls."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in _METHODS:
            node.op, node.target = "call_method", _METHODS[name]
        elif name in _FUNCTIONS:
            node.target = getattr(torch, name)
        elif node.target is aten.slice.Tensor and len(node.args) == 4 and node.args[1] != 0:
            _, dim, start, _ = node.args
            shape = shape_of(node)
            if shape is not None and isinstance(start, int) and start >= 0:
                node.op, node.target, node.args = "call_method", "narrow", (node.args[0], dim, start, shape[dim])
    for name, value in list(module._buffers.items()):
        del module._buffers[name]
        module.__dict__[name] = value  # an attribute of its own is found at once, a buffer only after a search
    module.recompile()
