"""The table of operations, which all tiers read: those of `tests.operations`, and rows of older ones.

The selftest has its own rows in the package, and draws operands for an operation without any by the names of
its parameters. The failing calls, the fuzzer and the tests of threads make the calls of the selftest.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.cli.selftest_cases import PARAMETERS
from cudnn_ct.cli.selftest_rows import required
from cudnn_ct.shapes.conv import ROLES
from cudnn_ct.shapes.norm import norm_parameter_dtype
from tests.causal_cases import (
    BACK_TO_BACK,
    CAUSAL,
    FFT,
    NEWER,
    back_to_back_cases,
    causal_cases,
    fft_cases,
)
from tests.conv_cases import conv_cases
from tests.fusion_cases import FUSIONS, float8_conv_cases, training_fusion_cases
from tests.gnn_cases import AGGREGATE, ATTENTION, aggregate_cases, attention_cases
from tests.layers import (
    FLOATS,
    LayerCase,
    Tensor,
    fused_cases,
    lying,
    pool_cases,
    scaled_conv_cases,
    scales_and_out,
    several,
    spatial_cases,
)
from tests.matmul_cases import PRODUCTS, matmul_cases
from tests.norm_cases import norm_cases
from tests.operations import FOUND, Operation, each
from tests.recipe_cases import recipe_cases
from tests.row_norm_cases import ROW_NORMS, row_norm_cases
from tests.tensor_cases import op_tensor_cases, reduce_cases, transform_cases

NORMS = tuple(f"batch_norm_{step}" for step in ("training", "inference", "backward", "inference_backward"))


class OpCase(NamedTuple):
    """Operations whose calls are drawn together, such as a forward pass and its gradient.

    Attributes
    ----------
    operations : tuple of str
        Public names, the forward pass first.
    calls : SearchStrategy of LayerCase
        Calls of any of them, with operands of any layout, view and seed.
    keywords : dict
        The arguments that a simple call requires besides arrays.
    varies : tuple of str
        The operations whose last bits may vary from run to run, by cuDNN's manual.
    c_calls : dict from names to int
        How many C calls compute a simple call of an operation, if not one.
    """

    operations: tuple[str, ...]
    calls: st.SearchStrategy[LayerCase]
    keywords: dict[str, Any] = {}  # noqa: RUF012 - never modified
    varies: tuple[str, ...] = ()
    c_calls: dict[str, int] = {}  # noqa: RUF012 - never modified


# --- calls by the names of parameters ----------------------------------------------------------------------


@st.composite
def named_calls(
    draw: st.DrawFn,
    operations: Sequence[str],
    shapes: st.SearchStrategy[tuple[int, ...]],
    keywords: st.SearchStrategy[dict[str, Any]],
) -> LayerCase:
    """Draw a call of an operation whose result has the shape of x, or of its gradient."""
    operation, shape, given = draw(st.sampled_from(operations)), draw(shapes), draw(keywords)
    dtype = draw(st.sampled_from(FLOATS))
    operands = _operands(draw, operation, lying(draw, shape, dtype, "floats"), given)
    scales, outs = scales_and_out(draw, shape, dtype)
    terms = {"dx": 10.0} if "scale" in operands else {}
    return LayerCase(operation, tuple(operands.values()), given | scales, outs, terms=terms)


def _operands(draw: st.DrawFn, operation: str, x: Tensor, keywords: dict[str, Any]) -> dict[str, Tensor]:
    """Draw what an operation requires: y is the result for x, dy has its shape, parameters are positive."""
    names = [name for name in required(operation) if name not in keywords]
    found = {"x": x, "dy": lying(draw, x.shape, x.dtype, "floats")}
    for name in PARAMETERS:
        seed = draw(st.integers(0, 99)) if name in names else 0
        found[name] = Tensor(x.shape[1:2], norm_parameter_dtype(x.dtype), "positive", seed=seed)
    if "y" in names:
        forward = operation.removesuffix("_backward")
        given = [found[name].array() for name in required(forward) if name not in keywords]
        found["y"] = lying(draw, x.shape, x.dtype, getattr(ct.reference, forward)(*given, **keywords))
    return {name: found[name] for name in names}


def shapes(first: int, last: int, longest: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw shapes of ``first`` to ``last`` axes; the first axis may have the length 0."""
    lengths = st.lists(st.integers(1, longest), min_size=first - 1, max_size=last - 1)
    return st.tuples(st.sampled_from((1, 2, 3, 4, 0)), lengths).map(lambda shape: (shape[0], *shape[1]))


def keywords(**choices: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw one value of each list."""
    return st.fixed_dictionaries({name: st.sampled_from(list(values)) for name, values in choices.items()})


def simple_arguments(operation: str, x: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments and keywords for images x on the device: x for all data, ones for parameters."""
    n, channels, *size = x.shape
    dtype = ct.asarray(x).spec.dtype
    known = dict.fromkeys(("x", "y", "dy", "a", "b"), x)
    known |= {name: ct.full((channels,), 1, norm_parameter_dtype(dtype)) for name in PARAMETERS}
    known |= {"grid": ct.zeros((n, *size, 2), dtype), "theta": ct.zeros((n, 2, 3), dtype)}
    if operation in ROW_NORMS:
        samples = (n,) * operation.startswith("ada_layer_norm")
        known |= dict.fromkeys(("scale", "bias"), ct.full((*samples, size[-1]), 1, dtype))
        known |= dict.fromkeys(("mean", "invstd", "invrms"), ct.full((*x.shape[:-1], 1), 1, "float32"))
    pixel = (channels, channels, *(1 for _ in size))
    known |= {"w": ct.full(pixel, 1, dtype), "x_shape": tuple(x.shape), "w_shape": pixel}
    if operation == "conv_bias_activation":
        known["bias"] = ct.zeros((channels,), dtype)
    accepted = inspect.signature(getattr(ct.reference, operation)).parameters
    keywords = {name: value for name, value in row_of(operation).keywords.items() if name in accepted}
    return [known[name] for name in required(operation) if name not in keywords], keywords


def simple_call(operation: str, x: Any, **keywords: Any) -> Any:
    """Call an operation on images x on the device, and return its first result."""
    arguments, given = simple_arguments(operation, x)
    return several(getattr(ct, operation)(*arguments, **given | keywords))[0]


@st.composite
def into_memory(draw: st.DrawFn, calls: st.SearchStrategy[LayerCase]) -> LayerCase:
    """Draw a call, and memory for some of the results after the first."""
    case = draw(calls)
    if case.operation not in SEVERAL or draw(st.booleans()):
        return case
    arrays = [one and one.array() for one in case.operands]
    outs = {name: one.array() for name, one in case.outs.items()}
    results = getattr(ct.reference, case.operation)(*arrays, **case.keywords, **outs)[1:]
    return replace(case, more=tuple(_memory(draw, one) for one in results))


def _memory(draw: st.DrawFn, result: np.ndarray | None) -> Tensor | None:
    if result is None or draw(st.booleans()):
        return None
    return lying(draw, result.shape, result.dtype.name, "integers" if result.dtype.kind == "i" else "nan")


def _found(module: dict[str, Operation]) -> OpCase:
    """Return the row of a module of `tests.operations`."""
    keywords = {name: value for one in module.values() for name, value in one.keywords.items()}
    varies = tuple(name for name, one in module.items() if one.varies)
    c_calls = {name: one.c_calls for name, one in module.items()}
    return OpCase(tuple(module), recipe_cases(module), keywords, varies, c_calls)


# --- the table ---------------------------------------------------------------------------------------------


GEOMETRY = (
    Tensor((2, 3, 4, 5), "float64", "floats"),
    Tensor((2, 2, 3), "float64", np.array([[[0.7, 0.11, 0.03], [-0.13, 0.81, 0.07]]] * 2)),
)
RESULT = Tensor((2, 3, 4, 8), "float64", "floats")
TERMS = {"dx": 10.0, "dtheta": 100.0}
SCALED = {"scale_height": 0.8, "scale_width": 1.5}
ACTIVATIONS = ("relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity")
OVER = ({}, {"mode": "instance"}, {"axis": 0}, {"axis": -1}, {"axis": (0, 1)}, {"axis": (-2, -1)})
ALGOS = ("accurate", "fast", "log")

CONV = OpCase(
    (
        *("conv", "conv_backward_data", "conv_backward_filter", "conv_transpose"),
        *("conv_backward_bias", "conv_bias_activation"),
    ),
    st.one_of(conv_cases(direction, asymmetric=False) for direction in ROLES) | fused_cases(),
)
CASES = (
    CONV,
    OpCase(("conv_scale_bias_activation",), scaled_conv_cases(), c_calls={"conv_scale_bias_activation": 3}),
    OpCase(FUSIONS, training_fusion_cases(), c_calls={"conv_batch_norm_statistics": 3}),
    OpCase(("scaled_conv",), float8_conv_cases()),
    OpCase(
        ("pool", "pool_backward"),
        pool_cases() | pool_cases(asymmetric=True),
        {"window": 1},
        varies=("pool_backward",),
    ),
    OpCase(
        ("softmax", "softmax_backward"),
        named_calls(
            ("softmax", "softmax_backward"),
            shapes(2, 6),
            st.builds(dict.__or__, keywords(algo=ALGOS), st.sampled_from(OVER)),
        ),
    ),
    OpCase(
        ("activation", "activation_backward"),
        named_calls(
            ("activation", "activation_backward"),
            shapes(1, 6),
            keywords(mode=ACTIVATIONS, coefficient=(0.5, 1, 2)) | st.just({"mode": "elu", "coefficient": 0}),
        ),
    ),
    OpCase(
        ("lrn", "lrn_backward"),
        named_calls(
            ("lrn", "lrn_backward"),
            shapes(3, 5, longest=7),
            keywords(n=range(1, 8), lrn_alpha=(1e-4, 1.0), lrn_beta=(0.75, 0.5), k=(1.0, 2.0)),
        ),
    ),
    OpCase(
        ("grid_sample", "grid_sample_backward", "affine_grid", "affine_grid_backward"),
        spatial_cases(),
        varies=("grid_sample_backward", "affine_grid_backward"),
        c_calls={"grid_sample": 3, "grid_sample_backward": 3},
    ),
    OpCase(
        ("spatial_transformer", "spatial_transformer_backward"),
        st.sampled_from(
            (
                LayerCase("spatial_transformer", GEOMETRY, SCALED, {"out": RESULT._replace(values="nan")}),
                LayerCase("spatial_transformer_backward", (RESULT, *GEOMETRY), SCALED, terms=TERMS),
            )
        ),
        varies=("spatial_transformer_backward",),
        c_calls={"spatial_transformer": 4, "spatial_transformer_backward": 5},
    ),
    OpCase(
        ("instance_norm", "instance_norm_backward"),
        named_calls(("instance_norm", "instance_norm_backward"), shapes(3, 6), keywords(epsilon=(1e-3, 0.5))),
        c_calls={"instance_norm": 3, "instance_norm_backward": 4},
    ),
    OpCase(CAUSAL, causal_cases(), varies=CAUSAL[1:]),
    OpCase(FFT, fft_cases(), varies=FFT[1:]),
    OpCase(BACK_TO_BACK, back_to_back_cases(), varies=BACK_TO_BACK[1:]),
    OpCase(AGGREGATE, aggregate_cases(), varies=AGGREGATE[1:]),
    OpCase(ATTENTION, attention_cases(), varies=ATTENTION[1:]),
    OpCase(NORMS, norm_cases(), c_calls={"batch_norm_inference_backward": 3}),
    OpCase(ROW_NORMS, row_norm_cases()),
    OpCase(PRODUCTS, matmul_cases(), varies=("matmul_backward",)),
    OpCase(("add", "op_tensor"), op_tensor_cases(), {"op": "sqrt"}),
    OpCase(("transform",), transform_cases()),
    OpCase(
        ("reduce", "reduce_with_indices"),
        reduce_cases(),
        {"op": "max", "axis": 0, "keepdims": True},
        c_calls={"reduce": 3},
    ),
    *map(_found, FOUND),
)

CASES = tuple(row._replace(calls=into_memory(row.calls)) for row in CASES)
OPERATIONS = tuple(name for row in CASES for name in row.operations)
SEVERAL = tuple(name for name in OPERATIONS if getattr(ct, name).__annotations__["return"] != "DeviceArray")


def row_of(operation: str) -> OpCase:
    """Return the row of an operation."""
    return next(row for row in CASES if operation in row.operations)


# Operations that `simple_call` calls; their first result has the layout of the images.
ON_IMAGES = tuple(
    name
    for name in OPERATIONS
    if not name.startswith(("affine_grid", *NEWER))
    and name not in (*PRODUCTS, *FUSIONS[1:], "scaled_conv")
    and each("on_images").get(name, True)
)
