"""The steps of SGD of a traced graph, taken together.

A step moves the parameters tensor by tensor, or all at once by gradients that were joined into one table. Either way
the graph is changed so that one kernel moves all of them by gradients where they lie, adding up those that come in
parts, and the gradient of a large linear layer is taken within its update, so that it is never written.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from motley.engine.batched.passes import is_view, shape_of

aten = torch.ops.aten
AT_ONCE, MOST_PARTS = 16, 256  # pieces of one kernel; parts that it adds up


class Piece(NamedTuple):
    """Columns of the parameters from ``start``, and gradients [K, size] whose sum is theirs."""

    start: int
    size: int
    grads: tuple[Node, ...]
    alone: bool  # there is one, and nothing else uses it


def fuse_updates(module: GraphModule) -> None:
    """Joins updates that follow each other, with nothing but views in between."""
    run: list[Node] = []
    for node in list(module.graph.nodes):
        if node.target is torch.ops.motley.sgd_.default:
            if run and _targets(run[0]) != _targets(node):
                _join(module, run)
                run = []
            run.append(node)
        elif run and not _only_looks(node):
            _join(module, run)
            run = []
    module.graph.eliminate_dead_code()
    module.recompile()


def _only_looks(node: Node) -> bool:
    """Whether a node computes nothing: it is a view, or one of several results."""
    return node.target is operator.getitem or (is_view(node) and not node.target._schema.is_mutable)  # type: ignore[union-attr]


def _columns(node: Any) -> tuple[Any, int]:
    """The table of which a node is some columns, and which is the first of them."""
    start = 0
    while isinstance(node, Node):
        source = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(source, Node) and _splits(source):
            start += sum(source.args[1][: node.args[1]])  # type: ignore[index, arg-type]
            node = source.args[0]
        elif _cuts(node):
            start += int(node.args[2])  # type: ignore[arg-type]
            node = source
        else:
            break
    return node, start


def _splits(node: Node) -> bool:
    return node.target is aten.split_with_sizes.default and node.args[2:] == (1,)


def _cuts(node: Node) -> bool:
    start = node.args[2] if node.target is aten.slice.Tensor and len(node.args) == 4 and node.args[1] == 1 else None
    return isinstance(start, int) and start >= 0


def _targets(node: Node) -> tuple[Any, ...]:
    """What an update moves, and how; updates with equal targets can be joined."""
    params, velocity, _, *rest = node.args
    (whole, start), (moving, same) = _columns(params), _columns(velocity)
    return (whole, moving, *rest) if velocity is None or start == same else (params, velocity, *rest)


def _join(module: GraphModule, run: list[Node]) -> None:
    graph, (params, velocity, *rest) = module.graph, _targets(run[0])
    pieces: list[Piece] = []
    for node in run:
        pieces += _pieces(node, 0 if params is node.args[0] else _columns(node.args[0])[1])
    if len(pieces) == 1 and _product(pieces[0]) is None:
        return
    grads: list[Node] = []
    starts: list[int] = []
    with graph.inserting_before(run[-1]):
        for piece in pieces:
            product = _product(piece)
            if product is None:
                grads.append(_parts(graph, piece))
                starts.append(piece.start)
                continue
            _move_by_product(graph, product, piece, (params, velocity, rest), run)
        for i in range(0, len(grads), AT_ONCE):
            some = slice(i, i + AT_ONCE)
            moved = (params, velocity, grads[some], starts[some], *rest)
            graph.call_function(torch.ops.motley.sgd_pieces_.default, moved)
    for node in run:
        graph.erase_node(node)


def _move_by_product(
    graph: Graph, product: Node, piece: Piece, moved: tuple[Node, Node | None, list[Any]], run: list[Node]
) -> None:
    """Moves a large linear layer; where it can be, with the gradient of its input, so that weights are read once."""
    params, velocity, rest = moved
    x, slope, precision = product.args
    back = _way_back(product, piece, params, rest, run)
    with graph.inserting_before(back or run[-1]):
        cut = (1, piece.start, piece.start + piece.size)
        where = [one and graph.call_function(aten.slice.Tensor, (one, *cut)) for one in (params, velocity)]
        op = torch.ops.motley.sgd_product_.default if back is None else torch.ops.motley.sgd_product_input_.default
        update = graph.call_function(op, (*where, x, slope, *rest, precision))
    if back is not None:
        back.replace_all_uses_with(update)
        graph.erase_node(back)


def _way_back(product: Node, piece: Piece, params: Node, rest: list[Any], run: list[Node]) -> Node | None:
    """The gradient of a layer's input, if the layer may move there already: nothing reads its weights later on."""
    back = _input_gradient(product)
    if back is None or _region(back.args[1]) != (params, piece.start, piece.size):
        return None
    nodes = list(back.graph.nodes)
    here = nodes.index(back)
    late = {*nodes[here + 1 :]}
    if not late.isdisjoint(one for one in (product.args[0], params, *rest) if isinstance(one, Node)):
        return None
    read = _read([node for node in nodes[here + 1 :] if node not in run])
    return None if any(_touches(one, params, piece) for one in read) else back


def _input_gradient(product: Node) -> Node | None:
    """The gradient of the input of the layer whose weights' gradient this is; None if there is not exactly one."""
    _, slope, precision = product.args
    assert isinstance(slope, Node)
    found = [user for user in slope.users if user.target is torch.ops.motley.linear_input.default]
    if len(found) != 1:
        return None
    return found[0] if found[0].args[0] is slope and found[0].args[2] == precision else None


def _read(nodes: list[Node]) -> list[Node]:
    """What nodes compute from."""
    computing = [node for node in nodes if node.op == "call_function" and not _only_looks(node)]
    return [one for node in computing for one in node.all_input_nodes]


def _region(node: Any) -> tuple[Any, int, int]:
    """The table that a tensor is some columns of, the first of them, and how many they are."""
    shape = shape_of(node)
    base, start = _columns(_stripped(node)[0])
    return base, start, math.prod(shape[1:]) if shape else 0


def _touches(node: Node, params: Node, piece: Piece) -> bool:
    """Whether a tensor shares memory with a piece, as far as that can be told; if it cannot, it does."""
    if _root(node) is not _root(params):
        return False
    base, start, size = _region(node)
    return base is not params or (start < piece.start + piece.size and piece.start < start + size)


def _root(node: Any) -> Any:
    """What a view is a view of, at the end."""
    while isinstance(node, Node) and node.op == "call_function" and _only_looks(node):
        node = node.args[0]
    return node


def _size(node: Node) -> int:
    shape = shape_of(node)
    assert shape is not None
    return shape[1]


def _stripped(node: Node) -> tuple[Node, bool]:
    """A node without the views that only shape it anew, and whether each of them has one user."""
    alone = len(node.users) == 1
    while node.target is aten.view.default:
        node = node.args[0]  # type: ignore[assignment]
        alone = alone and len(node.users) == 1
    return node, alone


def _pieces(update: Node, start: int) -> list[Piece]:
    """The pieces of an update: one, or those that its gradient was joined from where they lie side by side."""
    grad: Any = update.args[2]
    size = _size(grad)
    whole = Piece(start, size, (grad,), _stripped(grad)[1])
    terms = _terms(grad, True)
    if terms is None:
        return [whole]
    joined: dict[tuple[int, int], Piece] = {}
    for term in terms:
        place = (term.start, term.size)
        others = joined[place].grads if place in joined else ()
        joined[place] = Piece(start + term.start, term.size, (*others, *term.grads), term.alone and not others)
    end = 0
    for begin, length in sorted(joined):
        if begin != end:
            return [whole]
        end += length
    return list(joined.values()) if end == size else [whole]


def _terms(grad: Node, alone: bool) -> list[Piece] | None:
    """The columns a gradient was joined from by `cat`, by slices of the parameters, and by adding such gradients up."""
    base, single = _stripped(grad)
    if shape_of(base) != shape_of(grad):
        return None
    if base.target is aten.cat.default and base.args[1:] in _ALONG_COLUMNS:
        return _adjacent(base.args[0], alone and single)
    if base.target is aten.slice_backward.default:
        return _cut(*base.args)
    if base.target is aten.add.Tensor and not base.kwargs:
        return _added(base.args, alone and single)
    return None


_ALONG_COLUMNS = ((1,), (-1,))


def _cut(one: Any, shape: Any, dim: Any, start: Any, end: Any, step: Any) -> list[Piece] | None:
    """The gradient of a slice of columns, all in a row."""
    return [Piece(start, _size(one), (one,), False)] if dim == 1 and step == 1 else None


def _adjacent(joined: Any, alone: bool) -> list[Piece]:
    """Pieces of which each begins where the last one ends."""
    found: list[Piece] = []
    start = 0
    for one in joined:
        found.append(Piece(start, _size(one), (one,), alone and _stripped(one)[1]))
        start += found[-1].size
    return found


def _added(summands: tuple[Any, ...], alone: bool) -> list[Piece] | None:
    """The pieces of all summands, if each consists of such."""
    found: list[Piece] = []
    for one in summands:
        terms = _terms(one, alone) if isinstance(one, Node) else None
        if terms is None:
            return None
        found += terms
    return found


def _product(piece: Piece) -> Node | None:
    """The gradient of a large linear layer, where nothing but this update uses it."""
    base, _ = _stripped(piece.grads[0])
    return base if base.target is torch.ops.motley.linear_weight.default and piece.alone else None


def _parts(graph: Graph, piece: Piece) -> Node:
    """A gradient [K, N] as [S, K, N], before a sum where it is one."""
    grad, *others = piece.grads
    for other in others:
        grad = graph.call_function(aten.add.Tensor, (grad, other))
    base, start = _columns(_stripped(grad)[0])
    if base.target is aten.sum.dim_IntList:
        source, along, *_ = base.args
        shape, clients = shape_of(source) or (), _clients(grad)
        if (along, shape[1:2]) == ([0], (clients,)) and len(shape) == 3 and shape[0] <= MOST_PARTS:
            return graph.call_function(aten.slice.Tensor, (source, 2, start, start + piece.size))
        if (along, shape[::2]) == ([1], (clients, piece.size)) and len(shape) == 3 and shape[1] <= MOST_PARTS:
            return graph.call_function(aten.permute.default, (source, [1, 0, 2]))
    return graph.call_function(aten.unsqueeze.default, (grad, 0))


def _clients(node: Node) -> int:
    return (shape_of(node) or (0,))[0]
