"""Conversions of tensors by graphs of one node, for dtypes that ``cudnnOpTensor`` does not convert."""

from __future__ import annotations

from ..context import Context
from ..dtypes import DTYPES
from ..graph.first import first_plan
from ..graph.operations import Graph, Tensor, node
from ..graph.pixels import in_pixels
from ..plans.elementwise import copy_plan
from ..plans.program import Program, Step, chained
from ..shapes.specs import TensorSpec


def cast_by_graph(x: TensorSpec, y: TensorSpec, context: Context, mode: str = "identity") -> Program:
    """Return a plan that converts contiguous copies: graphs do not scale, and need one memory order.

    ``mode`` is the elementwise operation on the way.
    Alpha is applied in the wider of the two dtypes, so that values that it brings into range are kept.
    """
    packed_x, packed_y = (TensorSpec.packed(x.shape, spec.dtype) for spec in (x, y))
    # No engine supports a single element: it is converted together with the unused one behind it.
    copies = [
        spec if spec.size != 1 else TensorSpec.packed((2,), spec.dtype) for spec in (packed_x, packed_y)
    ]
    convert = in_pixels(lambda a, b: first_plan(conversion_graph(a, b, mode), context), *copies)
    steps = [
        Step(copy_plan(x, packed_x), (0, 2)),
        Step(convert, (2, 3)),
        Step(copy_plan(packed_y, y), (3, 1)),
    ]
    narrower = DTYPES[y.dtype].itemsize < DTYPES[x.dtype].itemsize
    return chained(copies, steps, scaled=0 if narrower else 2)


def conversion_graph(x: TensorSpec, y: TensorSpec, mode: str = "identity") -> Graph:
    """Make the graph of an operation that converts x to the dtype of y; both are images of pixels."""
    first, last = (Tensor(uid, spec) for uid, spec in enumerate((x, y), 1))
    compute = "float64" if "float64" in (x.dtype, y.dtype) else "float32"
    one = node("pointwise", mode=mode, math_prec=compute, xdesc=first, ydesc=last)
    return Graph((one,), (first, last))
