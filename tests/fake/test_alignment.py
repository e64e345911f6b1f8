"""Operands at every start address within 16 bytes, on the fakes, which reject what ends a CUDA context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alignment import norm_calls, own, placing, shifted, sweep
from tests.layers import LayerCase, Place, check_layer
from tests.norm_cases import norm_cases

from .conftest import forget
from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .norm import PER_ACTIVATION, PERSISTENT

OFFSETS = st.tuples(*[st.integers(0, 7)] * 5)
NORMS = sorted(norm_calls((2, 3, 2, 2), "float32"))


def places(host: Host) -> list[Place]:
    return [own, lambda array: ForeignArray(host, array)]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc"), ("float64", "nchw")])
def test_batch_norm_takes_each_operand_at_each_offset(
    fake: FakeCudnn, host: Host, name: str, dtype: str, layout: str
) -> None:
    case = norm_calls((2, 4, 2, 1), dtype, layout)[name]
    for place in places(host):
        sweep(case, place, check_layer)


@given(
    case=norm_cases(),
    offsets=OFFSETS,
    refused=st.sampled_from(((), (PERSISTENT,), (PER_ACTIVATION, PERSISTENT))),
    sizes=st.sampled_from(((0, 0), (100, 60))),
)
def test_batch_norm_equals_the_reference_when_operands_are_misaligned(
    fake: FakeCudnn,
    host: Host,
    case: LayerCase,
    offsets: Any,
    refused: tuple[int, ...],
    sizes: tuple[int, int],
) -> None:
    fake.norm_refused, fake.norm_sizes = frozenset(refused), sizes
    forget()  # the implementations that an earlier example left
    for place in places(host):
        check_layer(case, placing(place, *offsets))


@pytest.mark.parametrize("offset", range(8))
def test_shifted_arrays_start_behind_a_boundary(fake: FakeCudnn, host: Host, offset: int) -> None:
    """The tests of this file depend on it."""
    array = norm_calls((2, 3, 2, 2), "float16")["training"].operands[0].array()
    for place in places(host):
        assert place(shifted(array, offset)).pointer % 16 == 2 * offset
