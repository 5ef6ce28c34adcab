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


def _times_one(node: Node, _: set[Node]) -> Any:
    return node.args[0] if node.args[1] == 1 else None


def _unpermuted(node: Node, _: set[Node]) -> Any:
    order: Any = node.args[1]
    return node.args[0] if order == sorted(order) else None


def _transposed_back(node: Node, _: set[Node]) -> Any:
    source: Any = node.args[0]
    back = source.target is aten.transpose.int and set(source.args[1:]) == set(node.args[1:])
    return source.args[0] if back else None


def _shaped_as_before(node: Node, _: set[Node]) -> Any:
    shape = shape_of(node.args[0])
    return node.args[0] if shape is not None and shape == shape_of(node) else None


# Operations that may change nothing, each with how to find the value that is then repeated.
_REPEATS: dict[Any, Callable[[Node, set[Node]], Any]] = {
    aten.mul.Tensor: _beside_ones,
    aten.mul.Scalar: _times_one,
    aten.permute.default: _unpermuted,
    aten.transpose.int: _transposed_back,
    **dict.fromkeys(_RESHAPES, _shaped_as_before),
}


def _is_same(node: Node, touched: set[Node]) -> Any:
    """The node whose value this one repeats, or None."""
    rule = _REPEATS.get(node.target) if node.op == "call_function" else None
    return rule(node, touched) if rule is not None and node.args and isinstance(node.args[0], Node) else None


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
    for node in list(module.graph.nodes):
        if node.op == "call_function" and hasattr(node.target, "_schema"):
            _shorten(node)
    for name, value in list(module._buffers.items()):
        del module._buffers[name]
        module.__dict__[name] = value  # an attribute of its own is found at once, a buffer only after a search
    module.recompile()


def _shorten(node: Node) -> None:
    name = _schema(node, "name").removeprefix("aten::")
    if name in _METHODS:
        node.op, node.target = "call_method", _METHODS[name]
    elif name in _FUNCTIONS:
        node.target = getattr(torch, name)
    elif node.target is aten.slice.Tensor and len(node.args) == 4 and node.args[1] != 0:
        _narrow(node)


def _narrow(node: Node) -> None:
    """A slice as `narrow`, where it begins at a known place."""
    _, dim, start, _ = node.args
    shape = shape_of(node)
    if shape is not None and isinstance(start, int) and start >= 0:
        node.op, node.target, node.args = "call_method", "narrow", (node.args[0], dim, start, shape[dim])  # type: ignore[index]
