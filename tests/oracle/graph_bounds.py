"""Inputs of graphs, and bounds for their errors: the effect of rounding errors on a float64 evaluation.

Each operand and each result of an operation gets a random relative error as large as cuDNN's arithmetic may
make it. The outputs of several such evaluations vary by what rounding explains.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.dtypes import GRAPH_DTYPES
from cudnn_ct.reference.graph_nodes import evaluate
from cudnn_ct.shapes.graph.problem import GraphNode, GraphProblem

__all__ = ["bounds", "drawn", "wrong_elements"]

RUNS = 4
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-23, "float64": 2.0**-52}
TF32 = 2.0**-11
FAST = 2.0**-16  # of functions that engines approximate
SUMS = 2.0**-19  # of sums in float32, relative to their terms
PRODUCTS = ("matmul", "conv_forward", "conv_backward_data", "conv_backward_filter")
ATTENTION = ("sdpa", "sdpa_backward")
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 0.0}


def bounds(problem: GraphProblem, arrays: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each output in float64, and the error that it may have."""
    exact = _evaluated(problem, arrays, None)
    random = np.random.default_rng(0)
    runs = [_evaluated(problem, arrays, random) for _ in range(RUNS)]
    found = []
    for place in problem.outputs:
        value, dtype = exact[place], problem.values[place].spec.dtype
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(run[place] - value) for run in runs], axis=0)
            spread = np.where(np.isfinite(spread), spread, 0)
            rounding = EPSILON.get(dtype, 0.5) * np.abs(value) + TINY.get(dtype, 0.5)
        found.append((value, 2 * rounding + 8 * spread + 16 * spread.mean()))
    return found


def wrong_elements(got: np.ndarray, value: np.ndarray, bound: np.ndarray, dtype: str) -> np.ndarray:
    """Return where a result is further from the exact value than its bound."""
    result = got.astype(np.float64)
    largest = float(np.finfo(np.float16).max) if dtype == "float16" else np.inf
    with np.errstate(all="ignore"):
        near = np.abs(result - value) <= bound
        same = (np.isnan(result) & np.isnan(value)) | (result == value)
        overflow = np.abs(value) + bound >= largest
    wrong: np.ndarray = ~(near | same | overflow)
    return wrong


def _evaluated(
    problem: GraphProblem, arrays: list[np.ndarray], random: np.random.Generator | None
) -> dict[int, Any]:
    """Return all tensors in float64, with random errors if there is a generator."""

    def noisy(values: np.ndarray, size: float) -> np.ndarray:
        return values if random is None else values * (1 + size * random.uniform(-1, 1, np.shape(values)))

    values: dict[int, Any] = {}
    for place, array in zip(problem.inputs, arrays, strict=True):
        values[place] = array.astype(np.float64)
    for place, value in enumerate(problem.values):
        if value.role == "constant":
            values[place] = np.asarray(np.float32(value.value), np.float64)
    narrow = max(
        EPSILON.get(problem.values[place].spec.dtype, 0) for place in (*problem.inputs, *problem.outputs)
    )
    with np.errstate(all="ignore"):
        for one in problem.nodes:
            size = _operand_error(problem, one, narrow)
            given = {
                role: noisy(values[place], size if _is_float(problem, place) and role != "stats" else 0)
                for role, place in one.operands
            }
            computed = evaluate(one, given, problem)
            for role, place in one.results:
                made = np.broadcast_to(computed[role], problem.values[place].spec.shape)
                exact = one.kind == "pointwise" and one.attribute("mode") in _EXACT
                stored = problem.values[place].role == "output"
                values[place] = noisy(made, 0 if exact else max(FAST, narrow if stored else 0))
    return values


_EXACT = {"max", "min", "neg", "abs", "identity", "cmp_gt", "binary_select"}


def _is_float(problem: GraphProblem, place: int) -> bool:
    return GRAPH_DTYPES[problem.values[place].spec.dtype].name in EPSILON


def _operand_error(problem: GraphProblem, one: GraphNode, narrow: float) -> float:
    """Return the relative error of operands: engines round those of products to TF32 or narrower dtypes."""
    if one.kind in ATTENTION:
        return narrow
    if one.kind not in PRODUCTS:
        return EPSILON["float32"] if one.kind.startswith("pointwise") else SUMS
    virtual = any(problem.values[place].role == "virtual" for _, place in one.operands)
    wide = all(problem.values[place].spec.dtype == "float32" for _, place in one.operands)
    return max(narrow, TF32) if virtual else TF32 if wide else SUMS


def drawn(problem: GraphProblem) -> list[np.ndarray]:
    """Draw the inputs: deviations are positive, lengths fit, and o and stats follow from q, k and v."""
    random = np.random.default_rng(1)
    arrays: dict[int, np.ndarray] = {}
    for place in problem.inputs:
        spec = problem.values[place].spec
        roles = {role for one in problem.nodes for role, used in one.operands if used == place}
        values = random.uniform(-1.5, 1.5, spec.shape)
        if "inv_variance" in roles:
            values = np.abs(values) + 0.5
        if spec.dtype == "int32":  # results of queries behind the end of a sequence are not defined
            longest = _longest(problem, place)
            least = longest if "seq_len_q" in roles else 1
            values = random.integers(least, longest, spec.shape, endpoint=True)
        arrays[place] = values.astype(GRAPH_DTYPES[spec.dtype].numpy)
    for one in problem.nodes:
        if one.kind == "sdpa_backward":
            given = {role: arrays[at].astype(np.float64) for role, at in one.operands if at in arrays}
            given["scale"] = np.asarray(problem.operands_of(one)["scale"].value)
            made = evaluate(one._replace(kind="sdpa", results=()), given, problem)
            for role, at in one.operands:
                if role in ("o", "stats"):
                    arrays[at] = made[role].astype(arrays[at].dtype)
    return [arrays[place] for place in problem.inputs]


def _longest(problem: GraphProblem, place: int) -> int:
    """Return the largest length of sequences that an input of lengths may have."""
    for one in problem.nodes:
        for role, used in one.operands:
            if used == place and role in ("seq_len_q", "seq_len_kv"):
                return problem.operands_of(one)["q" if role == "seq_len_q" else "k"].spec.shape[2]
    return 1
