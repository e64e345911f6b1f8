"""The text of tensor specs, which errors contain."""

from __future__ import annotations

from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.shapes.specs import TensorSpec


@pytest.mark.parametrize("fields", [(None, None, None), ((1,), None, "float32"), ((1, 2), (1,), "float32")])
def test_wrong_spec_has_its_fields_as_text(fields: tuple[Any, ...]) -> None:
    wrong = TensorSpec(*fields)
    assert str(wrong) == repr(wrong)
    with pytest.raises(TypeError, match="cuDNN has no dtype TensorSpec"):
        ct.Graph(compute_dtype=wrong)  # type: ignore[arg-type]


def test_spec_names_its_layout_or_its_strides() -> None:
    assert str(TensorSpec.packed((2, 3), "float16")) == "float16[2, 3] nchw"
    assert str(TensorSpec((2, 3), (9, 2), "float16")) == "float16[2, 3] strides (9, 2)"
