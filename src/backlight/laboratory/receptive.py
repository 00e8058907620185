"""The geometry between two tensors, read off autograd's graph: which cells can reach which.

Convolutions, pooling, padding and upsampling keep a cell's neighbours its neighbours: along each
dimension, cell `o` of the sink reads the cells from `scale * o + low` to `scale * o + high` of the
source. Such spans compose along a path and unite over paths. Whatever is not known to keep to a
span may read everything. Where a cell *lies* in another layer is asked more loosely: a norm over
the whole map, or padding by reflection, leaves every cell at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

import torch

from backlight.laboratory.interface import Span

_Node = Any


@dataclass(frozen=True)
class Field:
    """What a cell reads along one dimension.

    >>> convolution = Field(Fraction(2), Fraction(-1), Fraction(1))  # 3 wide, stride 2, padding 1
    >>> convolution.cells(4)
    (7, 9)
    >>> convolution.through(convolution)
    Field(scale=Fraction(4, 1), low=Fraction(-3, 1), high=Fraction(3, 1))
    """

    scale: Fraction
    low: Fraction
    high: Fraction

    def through(self, inner: Field) -> Field:
        """What is read where this reads what `inner` made."""
        low, high = (inner.scale * end for end in (self.low, self.high))
        return Field(inner.scale * self.scale, low + inner.low, high + inner.high)

    def unite(self, other: Field) -> Field | None:
        """What either reads; None where they drift apart."""
        if self.scale != other.scale:
            return None
        return Field(self.scale, min(self.low, other.low), max(self.high, other.high))

    def cells(self, position: int) -> tuple[int, int]:
        """The first and the last cell that is read."""
        at = self.scale * position
        return ceil(at + self.low), floor(at + self.high)

    @property
    def period(self) -> int:
        """How far apart two cells are, at least, that read nothing in common."""
        return max(1, floor((self.high - self.low) / self.scale) + 1)

    def as_span(self) -> Span:
        """The same as plain numbers."""
        return Span(float(self.scale), float(self.low), float(self.high))


Fields = tuple[Field, ...]
_ONE: Final = Field(Fraction(1), Fraction(0), Fraction(0))


def fields_between(source: torch.Tensor, sink: torch.Tensor) -> Fields | None:
    """What a cell of `sink` reads of `source`, along each dimension after the first two.

    None says that it may read everything.

    >>> source = torch.zeros(1, 1, 8, 8, requires_grad=True)
    >>> sink = torch.nn.Conv2d(1, 1, 3, stride=2, padding=1)(source).relu()
    >>> [field.cells(1) for field in fields_between(source, sink)]
    [(1, 3), (1, 3)]
    """
    start, end = _ends(source, sink)
    return None if start is None else fields_on_way(start, end, sink.dim())


def places_between(source: torch.Tensor, sink: torch.Tensor) -> Fields | None:
    """Where a cell of `sink` lies in `source`, though it may depend on more than lies there.

    >>> source = torch.zeros(1, 2, 8, 8, requires_grad=True)
    >>> sink = torch.nn.GroupNorm(1, 2)(torch.nn.Conv2d(2, 2, 3, padding=1)(source))
    >>> fields_between(source, sink), [field.cells(4) for field in places_between(source, sink)]
    (None, [(3, 5), (3, 5)])
    """
    start, end = _ends(source, sink)
    return None if start is None else fields_on_way(start, end, sink.dim(), is_loose=True)


def _ends(source: torch.Tensor, sink: torch.Tensor) -> tuple[_Node, _Node]:
    start, end = sink.grad_fn, source.grad_fn or _accumulator(source)
    is_known = start is not None and sink.dim() >= 3 and source.dim() == sink.dim()
    return (start, end) if is_known else (None, None)


def fields_on_way(start: _Node, end: _Node, dims: int, *, is_loose: bool = False) -> Fields | None:
    """The same between two nodes of autograd's graph, whose tensors have so many dimensions."""
    found: dict[_Node, Fields | None] = {start: (_ONE,) * (dims - 2)}
    for node in _from_sink_to_source(start, end):
        if node == end:
            return found[node]
        outer = found[node]
        for place, (next_node, _) in enumerate(node.next_functions):
            if next_node is None:
                continue
            path = None if outer is None else _path(outer, node, next_node, place, is_loose)
            known = found.get(next_node, path)
            # Loosely, a way that may lead anywhere does not hide one that leads to a place.
            if is_loose and (known is None or path is None):
                found[next_node] = known or path
            else:
                found[next_node] = _united(known, path)
    return None


def _united(known: Fields | None, path: Fields | None) -> Fields | None:
    """What is read by one path or another."""
    if known is None or path is None or len(known) != len(path):
        return None
    united = [each.unite(other) for each, other in zip(known, path, strict=True)]
    return None if None in united else tuple(each for each in united if each is not None)


def _path(
    outer: Fields, node: _Node, next_node: _Node, place: int, is_loose: bool
) -> Fields | None:
    """What is read of the output of the node before `node`, where `outer` is read of its own."""
    name = node.name().partition("Backward")[0]
    if name in ("Squeeze", "Unsqueeze"):  # pooling in one dimension is done in two
        return _with_dimension(outer, node, next_node, is_more=name == "Squeeze")
    step = _step(name, node, next_node, place, is_loose)
    if step is None or len(outer) != len(step):
        return None
    return tuple(each.through(inner) for each, inner in zip(outer, step, strict=True))


def _with_dimension(
    outer: Fields, node: _Node, next_node: _Node, *, is_more: bool
) -> Fields | None:
    """The same fields with one more dimension of size 1, or without it."""
    inside = next_node if is_more else node
    dims = len(inside._input_metadata[0].shape)
    at = _signed(getattr(node, "_saved_dim", 0)) % dims - 2
    if at < 0 or dims != len(outer) + (3 if is_more else 2):
        return None
    return (*outer[:at], _ONE, *outer[at:]) if is_more else (*outer[:at], *outer[at + 1 :])


def _signed(number: int) -> int:
    """A dimension that autograd keeps as an unsigned number."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _accumulator(leaf: torch.Tensor) -> _Node:
    """The node at which a leaf's gradient arrives."""
    return leaf.view_as(leaf).grad_fn.next_functions[0][0] if leaf.requires_grad else None  # type: ignore[union-attr]


def _from_sink_to_source(start: _Node, end: _Node) -> list[_Node]:
    """The nodes on paths from the sink back to the source, none before one that reads it."""
    order: list[_Node] = []
    leads: dict[_Node, bool] = {}
    stack: list[tuple[_Node, bool]] = [(start, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            below = (leads[each] for each, _ in node.next_functions if each is not None)
            leads[node] = node == end or any(below)
            if leads[node]:
                order.append(node)
        elif node not in leads:
            leads[node] = False
            stack.append((node, True))
            if node != end:
                below = (each for each, _ in node.next_functions if each is not None)
                stack.extend((each, False) for each in below if each not in leads)
    return order[::-1]


def nodes_between(start: _Node, end: _Node) -> set[_Node]:
    """The nodes on paths from the sink's back to the source's, both included; none without a path.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> y = x * 2
    >>> len(nodes_between(y.tanh().grad_fn, y.grad_fn)), nodes_between(y.grad_fn, y.tanh().grad_fn)
    (2, set())
    """
    return set(_from_sink_to_source(start, end))


def _step(name: str, node: _Node, next_node: _Node, place: int, is_loose: bool) -> Fields | None:
    """What a cell of a node's output reads of the output of the node before it."""
    shapes = [tuple(each._input_metadata[0].shape) for each in (node, next_node)]
    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 3:
        return None
    is_map = name in _NORMS or (name in _MAP_NORMS and len(shapes[0]) > 3)
    if name in _ELEMENTWISE or (is_loose and is_map):
        return _same(shapes, fixed_from=0)
    rule = _RULES.get(name) or (_LOOSE_RULES.get(name) if is_loose else None)
    return None if rule is None else rule(node, shapes, place)


def _same(shapes: Sequence[tuple[int, ...]], *, fixed_from: int) -> Fields | None:
    ours, theirs = shapes
    if ours[fixed_from:] != theirs[fixed_from:]:
        return None
    return (_ONE,) * (len(ours) - 2)


def _convolution(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    if place != 0:
        return None
    kernel = tuple(node._saved_weight.shape[2:])
    how = [tuple(getattr(node, f"_saved_{name}")) for name in ("stride", "padding", "dilation")]
    fields = []
    for k, stride, padding, dilation in zip(kernel, *how, strict=True):
        reach = dilation * (k - 1)
        if node._saved_transposed:
            low, high = Fraction(padding - reach, stride), Fraction(padding, stride)
            fields.append(Field(Fraction(1, stride), low, high))
        else:
            low, high = Fraction(-padding), Fraction(reach - padding)
            fields.append(Field(Fraction(stride), low, high))
    return tuple(fields)


def _pooling(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    dims = len(shapes[0]) - 2
    kernel = _each(node._saved_kernel_size, dims)
    stride = _each(node._saved_stride or node._saved_kernel_size, dims)
    padding = _each(node._saved_padding, dims)
    dilation = _each(getattr(node, "_saved_dilation", (1,)), dims)
    return tuple(
        Field(Fraction(s), Fraction(-p), Fraction(d * (k - 1) - p))
        for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)
    )


def _each(numbers: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(numbers) * dims if len(numbers) == 1 else tuple(numbers)


def _padding(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    dims = len(shapes[0]) - 2
    # The last dimension comes first, each as (before, after); batch and channels come last.
    before = [*node._saved_pad[::2], *[0] * (dims + 2)]
    if any(before[dims : dims + 2]):
        return None
    shifts = (Fraction(-each) for each in before[:dims][::-1])
    return tuple(Field(Fraction(1), shift, shift) for shift in shifts)


def _nearest(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    # One more on either side than is read: how it rounds depends on the given scale.
    scales = (Fraction(ours, out) for out, ours in zip(shapes[0][2:], shapes[1][2:], strict=True))
    return tuple(Field(scale, Fraction(-1), Fraction(1)) for scale in scales)


def _adaptive_pooling(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    fields = []
    for out, own in zip(shapes[0][2:], shapes[1][2:], strict=True):
        scale = Fraction(own, out)
        is_even = own % out == 0
        fields.append(Field(scale, Fraction(0 if is_even else -1), scale - 1 if is_even else scale))
    return tuple(fields)


def _slice(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    dim = _signed(node._saved_dim) % len(shapes[0])
    size = shapes[1][dim]
    first = _signed(node._saved_start or 0)
    start = Fraction(max(0, first + size) if first < 0 else min(first, size))
    own = Field(Fraction(node._saved_step), start, start)
    return tuple(own if n + 2 == dim else _ONE for n in range(len(shapes[0]) - 2))


def _shuffle(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    """Channels become positions, or positions channels."""
    fields = []
    for out, own in zip(shapes[0][2:], shapes[1][2:], strict=True):
        scale = Fraction(own, out)
        fields.append(Field(scale, min(scale - 1, Fraction(0)), max(scale - 1, Fraction(0))))
    return tuple(fields)


def _edge_padding(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    """Padding by reflection or repetition, as if nothing came from the edges."""
    shifts = (Fraction(-_signed(each)) for each in tuple(node._saved_padding)[::2][::-1])
    return tuple(Field(Fraction(1), shift, shift) for shift in shifts)


def _upsampling(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    if node._saved_align_corners:
        pairs = list(zip(shapes[0][2:], shapes[1][2:], strict=True))
        if any(min(pair) < 2 for pair in pairs):
            return None
        return tuple(
            Field(Fraction(own - 1, out - 1), Fraction(-2), Fraction(2)) for out, own in pairs
        )
    scales = [Fraction(ours, out) for out, ours in zip(shapes[0][2:], shapes[1][2:], strict=True)]
    middles = [(scale - 1) / 2 for scale in scales]
    return tuple(
        Field(scale, middle - 2, middle + 2) for scale, middle in zip(scales, middles, strict=True)
    )


def _batch_norm(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    # While training, each output depends on all cells of its channel.
    return None if node._saved_training or place != 0 else _same(shapes, fixed_from=0)


def _concatenation(node: _Node, shapes: Sequence[tuple[int, ...]], place: int) -> Fields | None:
    dim = _signed(node._saved_dim)
    return _same(shapes, fixed_from=2) if dim % len(shapes[0]) == 1 else None


_Rule = Callable[[_Node, Sequence[tuple[int, ...]], int], "Fields | None"]
_RULES: Final[dict[str, _Rule]] = {
    "Convolution": _convolution,
    "MaxPool2DWithIndices": _pooling,
    "MaxPool3DWithIndices": _pooling,
    "AvgPool2D": _pooling,
    "AvgPool3D": _pooling,
    "ConstantPadNd": _padding,
    "UpsampleNearest1D": _nearest,
    "UpsampleNearest2D": _nearest,
    "UpsampleNearest3D": _nearest,
    "UpsampleLinear1D": _upsampling,
    "UpsampleBilinear2D": _upsampling,
    "UpsampleTrilinear3D": _upsampling,
    "UpsampleBicubic2D": _upsampling,
    "AdaptiveAvgPool2D": _adaptive_pooling,
    "AdaptiveAvgPool3D": _adaptive_pooling,
    "AdaptiveMaxPool2D": _adaptive_pooling,
    "AdaptiveMaxPool3D": _adaptive_pooling,
    "PixelShuffle": _shuffle,
    "PixelUnshuffle": _shuffle,
    "Slice": _slice,
    "NativeBatchNorm": _batch_norm,
    "Cat": _concatenation,
}
_LOOSE_RULES: Final[dict[str, _Rule]] = {
    f"{kind}Pad{dims}D": _edge_padding
    for kind in ("Reflection", "Replication")
    for dims in (1, 2, 3)
}

_ELEMENTWISE: Final = frozenset(
    "Abs Add Alias Clamp ClampMax ClampMin Clone Div Elu Exp Gelu Hardsigmoid Hardswish Hardtanh "
    "LeakyRelu Log LogSigmoid Mish Mul NativeDropout Neg Pow PreluKernel Reciprocal Relu Rsqrt "
    "Sigmoid Silu Softplus Sqrt Sub Tanh Threshold ToCopy Unsafe View Where".split()
)
_NORMS: Final = frozenset(("NativeBatchNorm", "NativeGroupNorm"))
"""Operations that mix the cells of a map, and leave each at its place."""
_MAP_NORMS: Final = frozenset(("LogSoftmax", "NativeLayerNorm", "Softmax"))
"""The same, if there are rows and columns: the features of a sequence have no places."""

LINEAR: Final = frozenset(
    "AdaptiveAvgPool2D AdaptiveAvgPool3D Add Addmm Alias AsStrided AvgPool1D AvgPool2D AvgPool3D "
    "Baddbmm Bmm Cat Clone Col2Im ConstantPadNd Convolution Cumsum Diagonal Div Expand Flip Gather "
    "Im2Col Index IndexSelect Mean Mm Mul Neg Permute PixelShuffle PixelUnshuffle ReflectionPad1D "
    "ReflectionPad2D ReflectionPad3D Repeat ReplicationPad1D ReplicationPad2D ReplicationPad3D "
    "Roll Select Slice Split Squeeze Stack Sub Sum T ToCopy Transpose Unbind Unsqueeze UnsafeView "
    "UpsampleBicubic2D UpsampleBilinear2D UpsampleLinear1D UpsampleNearest1D UpsampleNearest2D "
    "UpsampleNearest3D UpsampleTrilinear3D View".split()
)


def nonlinear_between(source: torch.Tensor, sink: torch.Tensor) -> str | None:
    """The name of an operation that is not linear and lies between two tensors, if there is one.

    >>> source = torch.zeros(3, requires_grad=True)
    >>> nonlinear_between(source, source * 2 + 1), nonlinear_between(source, source.tanh())
    (None, 'Tanh')
    """
    start, end = sink.grad_fn, source.grad_fn or _accumulator(source)
    if start is None:
        return None
    between = [node for node in _from_sink_to_source(start, end) if node != end]
    leading = set(between) | {end}
    for node in between:
        name = str(node.name().partition("Backward")[0])
        if name not in LINEAR and not (name == "NativeBatchNorm" and not node._saved_training):
            return name
        # A product is linear only while one of its factors does not depend on the source.
        paths = [n for n, (each, _) in enumerate(node.next_functions) if each in leading]
        if name in _PRODUCTS and (len(paths) > 1 or (name == "Div" and paths != [0])):
            return name
    return None


_PRODUCTS: Final = ("Mul", "Mm", "Bmm", "Addmm", "Baddbmm", "Div", "Convolution")
