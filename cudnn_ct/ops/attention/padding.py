"""Zeros behind the lengths of padded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...context import Context
from ...graph.operations import Graph, Tensor, node
from ...plans.elementwise import copy_plan, expand_plan, fill_plan, op_tensor_of
from ...plans.program import Program, Step, Steps
from ...shapes.attention_rules import PaddingProblem, like_axes, padding_problem, sequence_lengths
from ...shapes.specs import TensorSpec, equivalent_strides
from ...typing import ArrayLike, StreamLike
from .._call import execute
from .._documented import documented
from .._fallback import Implementation, by_engines
from .._formulas import Formulas, Matrix, cast_by_graph, first_plan
from .._operands import stream_of
from .._operation import Operation
from .._sequences import DeviceFloats
from .operands import is_in_host, uploaded


@documented()
def clear_padding(
    x: ArrayLike,
    lengths: ArrayLike | Sequence[int],
    *more: Never,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Return x with zeros behind the lengths of its sequences, whatever is there.

    Kernels of attention multiply v behind the lengths by weights of 0, so NaN and infinities there make the
    whole sequence NaN. This also holds for the other operands of a gradient.

    Parameters
    ----------
    x : device array, shape (B, H, S, D), float16 | bfloat16 | float32
        D is a multiple of 8.
    lengths : int32 array of shape (B,) on the device, or ints
        Rows of each sequence that are kept, from 0 to S. Ints are checked; the range of device arrays is not.
    out : device array, shape and dtype of x, optional
        Destination of the result. It may be x itself.

    Notes
    -----
    A graph that selects x or 0, ``cudnnBackendExecute``, after elementwise calls for the places of the rows:
    the same from run to run. Lengths on the device are not read by the host, so the call can be captured.

    Examples
    --------
    >>> v = ct.full((1, 1, 3, 8), float("nan"), "float16")
    >>> ct.clear_padding(v, [2]).numpy()[0, 0, :, 0]
    array([nan, nan,  0.], dtype=float16)
    """
    if more or unknown or x is UNSET or lengths is UNSET:
        return corrected(clear_padding, locals())
    if is_in_host(lengths):
        where = stream_of(x, "x", stream)
        x, stream = as_operand(x, "x", where), where
        rows = x.shape[2] if len(x.shape) == 4 else 0  # the problem reports another number of axes
        numbers = sequence_lengths(lengths, rows, "lengths") if rows else lengths
        lengths = uploaded(numbers, "int32", where, "lengths")
    return execute(_CLEAR, ("x", "lengths"), (x, lengths), outs=(out,), stream=stream)[0]


def clearing_plan(problem: PaddingProblem, context: Context, *, by_driver: bool = False) -> Program:
    """Return the plan of a selection of x or 0, by the number of rows that are left in a sequence.

    Without legacy calls, the driver repeats the lengths and the places of rows, and a graph subtracts them.
    """
    x, y = problem.x, problem.y
    batch, heads, length, head = x.shape
    dense = like_axes(x.shape, x)
    steps_of_rows = tuple(step // head for step in dense.strides[:3])
    left = TensorSpec((batch, heads, length, 1), (*steps_of_rows, 1), "float32")
    left_of_each = dense._replace(dtype="float32")
    lengths, floats = (TensorSpec.packed((batch, 1, 1, 1), dtype) for dtype in ("int32", "float32"))
    places = TensorSpec.packed((1, 1, length, 1))
    x_in_place, y_in_place = (equivalent_strides(x.shape, one.strides, dense.strides) for one in (x, y))
    # The pointers of a run are x, lengths, y; those of temporaries follow, then the places of rows.
    source, target = (0 if x_in_place else 6), (2 if y_in_place else 7)
    rows = batch * heads * length
    if by_driver:
        repeated = [Step(expand_plan(floats, left), (3, 4)), Step(expand_plan(places, left), (9, 8))]
        one = Formulas(Matrix(1, rows, "columns"), 2, context)
        one.store(one.tensor(0, "float32") - one.tensor(1, "float32"), 0, "float32")
        numbers = [*repeated, Step(one.program(), (4, 8))]
    else:
        numbers = [
            Step(fill_plan(left, 0.0), (4,)),
            Step(op_tensor_of("add", left, floats, left), (4, 3, 4)),
            Step(op_tensor_of("add", left, places, left, alpha2=-1.0), (4, 8, 4)),
        ]
    steps = [
        Step(cast_by_graph(lengths, floats, context), (1, 3)),
        *numbers,
        Step(expand_plan(left, left_of_each), (4, 5)),
        Step(first_plan(selection_graph(rows, head, x.dtype), context), (source, 5, target)),
    ]
    steps[:0] = [] if x_in_place else [Step(copy_plan(x, dense), (0, 6))]
    steps += [] if y_in_place else [Step(copy_plan(dense, y), (7, 2))]
    temporaries = [floats, left, left_of_each, dense, dense, *[left] * by_driver]
    return Program(Steps(temporaries, steps), constants=[partial(_places, length)])


def _places(length: int, context: Context) -> DeviceFloats:
    return DeviceFloats(context.device, range(length), "places of rows")


def selection_graph(rows: int, head: int, dtype: str) -> Graph:
    """Return the graph that keeps elements of x for which the number of rows that are left is positive."""
    # Engines do not repeat a column that the graph computes: the numbers are repeated before.
    shape = (1, rows, head)
    x, y = (Tensor(uid, TensorSpec.packed(shape, dtype)) for uid in (1, 3))
    left = Tensor(2, TensorSpec.packed(shape))
    kept = Tensor(4, TensorSpec.packed(shape, "bool"), virtual=True)
    zero, nothing = (Tensor(uid, TensorSpec.packed((1, 1, 1)), value=0.0) for uid in (5, 6))
    compare = node("pointwise", mode="cmp_gt", math_prec="float32", xdesc=left, bdesc=zero, ydesc=kept)
    choose = {"xdesc": x, "bdesc": nothing, "tdesc": kept, "ydesc": y}
    select = node("pointwise", mode="binary_select", math_prec="float32", **choose)
    return Graph((compare, select), (x, left, y))


_CLEAR = Operation(
    "a clearing of padding",
    padding_problem,
    (
        Implementation(clearing_plan, aligned=True, scales=False),
        by_engines(partial(clearing_plan, by_driver=True)),
    ),
    in_place=True,
    relayout=False,
)
