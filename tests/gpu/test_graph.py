"""Every engine of fused graphs against the reference. Those of plain convolutions are in test_algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError
from cudnn_ct.ops.conv.graph import candidates, plan
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec
from tests.conv_cases import TOLERANCE

from .test_algorithms import sparse

ACTIVATIONS = ("relu", "identity", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
def test_each_engine_of_a_fused_graph_equals_reference(residual: bool, activation: str, dtype: str) -> None:
    context = contexts.current(streams.resolve_stream(None))
    x, w = (TensorSpec.packed(shape, dtype, "nhwc") for shape in ((2, 16, 9, 9), (8, 16, 3, 3)))
    conv = conv_problem("forward", x, w, padding=1)
    bias = TensorSpec.packed((1, 8, 1, 1), dtype, "nhwc")
    keywords: dict[str, Any] = {"activation": activation, "coefficient": 3.0}
    keywords |= {"alpha1": 2.0, "alpha2": 0.5} if residual else {}
    problem = FusedConv(conv, bias, conv.y if residual else None, **keywords)
    specs = {"x": x, "w": w, "residual": problem.z, "bias": bias}
    values = {name: sparse(spec.shape, seed) for seed, (name, spec) in enumerate(specs.items()) if spec}
    inputs = [ct.asarray(value, dtype, layout="nhwc") for value in values.values()]
    values["bias"] = values["bias"].ravel()
    expected = ct.reference.conv_bias_activation(**values, padding=1, **keywords)
    wrong, ran = [], 0
    for row in [row for row in candidates(problem, context) if not row.rejected]:
        result = ct.full(conv.y.shape, np.nan, dtype, layout="nhwc")
        pointers = [array.pointer for array in (*inputs, result)]
        try:
            plan(problem, row, context).run(context, pointers, 1.0, 0.0)
        except CudnnError as error:
            print(row.algorithm, type(error).__name__, str(error).splitlines()[0])
            continue
        ran += 1
        error = np.abs(result.numpy().astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1)
        if not error <= TOLERANCE[dtype]:  # also catches NaN
            wrong.append((row.algorithm, float(error)))
    assert not wrong, wrong
    if not ran:
        pytest.skip("no engine here")
