"""Products of matrices as 1 x 1 convolutions: cuDNN has no engine for matrices without tensor cores.

``b`` is an image with a pixel for each column, whose channels are the terms; the rows of ``a`` are filters.
Batched products are groups. The epilogue is made of legacy calls.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...algo_cache import CandidateSource
from ...context import Context
from ...errors import NotSupportedError
from ...plans.base import Candidate, Plan, packed_of, tensors_of
from ...plans.program import Step, chained
from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from ...shapes.matmul import MatmulProblem
from ...shapes.specs import TensorSpec
from .._graph_source import ReducedSource, packed_source
from ..conv.candidates import CONVOLUTIONS
from ..conv.legacy import unfused_plan, why_not_unfused
from .cublaslt import with_cublaslt
from .source import sliced_products
from .views import packed_operands


def convolution_of(problem: MatmulProblem) -> FusedConv:
    """Return the convolution that computes a product of three axes with contiguous operands."""
    (a_batch, rows, terms), (b_batch, _, columns) = problem.a.shape, problem.b.shape
    if problem.y.dtype != problem.a.dtype:
        raise NotSupportedError(
            f"without tensor cores, products of {problem.a.dtype} are written as {problem.a.dtype}, "
            f"not {problem.y.dtype}"
        )
    if b_batch == 1:  # all share b: the rows of all matrices are filters
        rows, a_batch = rows * a_batch, 1
    images, groups = (b_batch, 1) if a_batch == 1 else (1, b_batch)
    dtype = problem.y.dtype

    def packed(*shape: int) -> TensorSpec:
        return TensorSpec.packed(shape, dtype)

    conv = ConvProblem(
        "forward",
        packed(images, groups * terms, 1, columns),
        packed(groups * rows, terms, 1, 1),
        packed(images, groups * rows, 1, columns),
        padding=((0, 0), (0, 0)),
        stride=(1, 1),
        dilation=(1, 1),
        groups=groups,
        mode="cross_correlation",
        compute=problem.compute,
        tensor_cores=False,
        scaled="alpha" if problem.alpha != 1 else "",
        aligned=problem.aligned,
    )
    bias = TensorSpec.packed((1, 1, 1, columns), problem.bias.dtype) if problem.bias else None
    activation: Any = "swish" if problem.activation == "silu" else problem.activation
    return FusedConv(conv, bias, conv.y if problem.residual else None, activation, alpha1=problem.alpha)


def _planned(inner: CandidateSource, problem: Any, candidate: Candidate, context: Context) -> Plan:
    """Make a candidate ready to run, with the epilogue in separate calls."""
    fused = convolution_of(problem)
    if problem.has_epilogue and (impossible := why_not_unfused(fused)):
        raise NotSupportedError(f"{impossible}, for this {problem}")
    made = inner.plan(fused.conv, candidate, context)
    plan: Plan = unfused_plan(fused, made) if problem.has_epilogue else made
    order = [name for name in ("b", "a", "residual", "bias", "y") if getattr(problem, name)]
    place = list(tensors_of(problem)).index
    return chained([], [Step(plan, tuple(map(place, order)))])


_CONVOLUTIONS = ReducedSource(
    CONVOLUTIONS, lambda problem: convolution_of(problem).conv, _planned, comparable=False
)
_PACKED = packed_source(_CONVOLUTIONS, partial(packed_of, layout="nchw"))
AS_CONVOLUTIONS = packed_source(sliced_products(with_cublaslt(_PACKED)), packed_operands)
