"""Descriptors of batch normalisation's parameters, against those that the real library derives."""

from __future__ import annotations

import pytest

import cudnn_ct as ct
from cudnn_ct._bindings.enums import BatchNormMode
from cudnn_ct.ops.norm import plans
from cudnn_ct.shapes.norm import NormInference, norm_inference, norm_parameter_dtype

pytestmark = pytest.mark.usefixtures("cudnn")

FORMS = (plans.nd_layout, plans.pixels_layout)
SHAPE = (4, 3, 2, 5, 1, 2)


def problem(rank: int, mode: str, dtype: str, layout: str) -> NormInference:
    x = ct.TensorSpec.packed(SHAPE[:rank], dtype, layout)
    kept = tuple(
        n if axis == 1 or (mode == "per_activation" and axis) else 1 for axis, n in enumerate(x.shape)
    )
    parameter = ct.TensorSpec.packed(kept, norm_parameter_dtype(dtype), layout)
    specs = {"x": x, **dict.fromkeys(("scale", "bias", "mean", "var"), parameter)}
    return norm_inference(specs, (None,), mode, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("rank", range(1, 7))
def test_parameters_are_described_as_cudnn_does(rank: int, mode: str, dtype: str) -> None:
    tried = set()
    for layout in ("nchw", "nhwc") if 3 <= rank <= 5 else ("nchw",):
        for form in FORMS:
            for native in BatchNormMode:
                try:
                    specs = form(problem(rank, mode, dtype, layout), native)
                except ct.NotSupportedError:  # these operands do not lie so
                    continue
                if specs is None:
                    continue
                tried.add(form)
                assert 4 <= len(specs["x"].shape) <= 5
                with (
                    ct.TensorDescriptor(specs["x"]) as x,
                    ct.TensorDescriptor(ct.TensorSpec.packed((1,) * 4)) as derived,
                ):
                    ct.raw.cudnnDeriveBNTensorDescriptor(derived, x, native)
                    assert derived.read() == specs["scale"]
    assert plans.nd_layout in tried
