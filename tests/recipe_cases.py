"""Calls of layers that the recipes of `tests.operations` draw, with the sizes of errors of the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from cudnn_ct.cli.selftest_rows import required
from cudnn_ct.dtypes import as_dtype
from tests.layers import TOLERANCE, LayerCase, Tensor, lying, scales_and_out
from tests.operations import Operation
from tests.oracle.by_loops import ANSWERS
from tests.oracle.judge import UNIT, derived_value
from tests.oracle.recipes import Recipe, Source

SAME = ("distinct", "integers", "positive")  # other values are left to the oracle, which bounds each element


@st.composite
def recipe_cases(draw: st.DrawFn, operations: Mapping[str, Operation]) -> LayerCase:
    """Draw a call of any of the operations, with operands in any layout and view."""
    name = draw(st.sampled_from(list(operations)))
    recipe = operations[name].draw(Source(draw(st.integers(0, 2**32))))
    assume(not recipe.rejected)
    operands = _operands(draw, recipe)
    dtype = next(iter(operands.values())).dtype
    scales: dict[str, Any] = {}
    outs: dict[str, Tensor] = {}
    if recipe.out and recipe.scaled:
        scales, outs = scales_and_out(draw, *recipe.out)
    elif recipe.out and draw(st.booleans()):
        outs = {"out": lying(draw, *recipe.out, "nan")}
    terms = _terms(name, operations[name], operands, recipe.arguments, dtype)
    terms = {result: size * max(1, abs(scales.get("alpha", 1))) for result, size in terms.items()}
    given = tuple(operands.pop(one) for one in required(name) if one in operands)
    return LayerCase(name, given, recipe.arguments | scales, operands | outs, terms=terms)


def _operands(draw: st.DrawFn, recipe: Recipe) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, (shape, dtype, values) in recipe.operands.items():
        if name not in recipe.derived:
            found[name] = lying(draw, shape, dtype, values if values in SAME else "floats")
    for name, derived in recipe.derived.items():
        shape, dtype, _ = recipe.operands[name]
        value = derived_value(derived, _wide(found), ANSWERS).reshape(shape)
        found[name] = lying(draw, shape, dtype, value)
    return found


def _wide(operands: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: one.array().astype(np.float64) for name, one in operands.items()}


def _terms(
    name: str, operation: Operation, operands: Mapping[str, Tensor], arguments: dict[str, Any], dtype: str
) -> dict[str, float]:
    """Return the bounds of errors of results, as those of `judge`, in units of the tolerance of a sum."""
    sums = as_dtype(dtype).accumulate
    factor = (operation.factor or 16) + sqrt(max(prod(one.shape) for one in operands.values()))
    within = max(1, factor * UNIT[sums] / TOLERANCE[sums])
    between = ((operation.roundings or 1) - 1) * UNIT[dtype] / TOLERANCE[sums]
    terms = {}
    for result, answer in ANSWERS[name](_wide(operands), arguments).items():
        assume(answer.ambiguous is None or not answer.ambiguous.any())
        rounded = answer.scale if answer.rounded is None else answer.rounded
        sizes = within * answer.scale + between * rounded
        terms[result] = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    return terms | {"out": next(iter(terms.values()))}  # as the only result is called
