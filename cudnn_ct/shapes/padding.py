"""The problem of clearing rows behind the lengths of padded sequences."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import NotSupportedError
from .attention import HEAD_MULTIPLE
from .attention_rules import like_axes
from .checks import Outs, Specs, result_spec
from .layer import titled
from .specs import TensorSpec

DTYPES = ("float16", "bfloat16", "float32")
LONGEST = 2**24  # places are compared in float32


@titled("clearing of padding")
class PaddingProblem(NamedTuple):
    """y is x with zeros behind the lengths."""

    x: TensorSpec
    lengths: TensorSpec
    y: TensorSpec

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensor that is written."""
        return (self.y,)


def padding_problem(specs: Specs, outs: Outs) -> PaddingProblem:
    """Return the problem of operands that were checked against each other."""
    x, lengths = specs["x"], specs["lengths"]
    if len(x.shape) != 4:
        raise ValueError(f"x has the wrong number of axes: got shape {x.shape}, expected (B, H, S, D)")
    if x.dtype not in DTYPES:
        raise TypeError(f"x has the wrong dtype: got {x.dtype}, expected {' or '.join(DTYPES)}")
    if x.shape[3] % HEAD_MULTIPLE or x.shape[2] > LONGEST:
        raise NotSupportedError(
            f"x must have a last axis that is a multiple of {HEAD_MULTIPLE}, and at most {LONGEST} rows a "
            f"sequence: got {x.shape}"
        )
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"lengths has the wrong shape: got {lengths.shape}, expected {x.shape[:1]}")
    if lengths.dtype != "int32":
        raise TypeError(f"lengths has the wrong dtype: got {lengths.dtype}, expected int32")
    return PaddingProblem(x, lengths, result_spec(x.shape, like_axes(x.shape, x), out=outs[0]))
