"""Tensors that calls of the package read: those with known attributes as all others."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cudnn_ct as ct
from cudnn_ct.cuda import foreign
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.array_key import array_key
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.ops._operands import read_arrays
from cudnn_ct.shapes.specs import TensorSpec
from tests.fake.cudnn import FakeCudnn


@pytest.fixture(autouse=True)
def _tensors_on_a_device(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    @lru_cache(4096)
    def key_of(shape: Any, strides: Any, dtype: Any, device: Any, aligned: bool) -> Any:
        spec = TensorSpec(tuple(shape), strides, as_dtype(str(dtype).removeprefix("torch.")).name)
        return array_key(spec, 0, aligned, False)

    monkeypatch.setattr(foreign, "_key_of_torch", key_of)
    monkeypatch.setattr(foreign.PyTorch, "current", lambda _, device: streams.default_stream(device))
    foreign._known_tensors.clear()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors that were read one by one."""
    seen: list[Any] = []
    real = foreign.PyTorch.read
    monkeypatch.setattr(foreign.PyTorch, "read", lambda self, one: (seen.append(one), real(self, one))[1])
    return seen


class Subclass(torch.Tensor):
    pass


class Raising(torch.Tensor):
    """A tensor that no function of torch takes, as a parameter without values."""

    @classmethod
    def __torch_function__(cls, *given: Any, **_: Any) -> Any:
        raise ValueError("no function takes it")


class Shapeless:
    """An operand whose shape cannot be read, as that of some tensors."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("no shape")


MEMORY = torch.randn(4096)
TENSORS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.randn(2, 4, 6),
    "batch": lambda: torch.randn(3, 4, 6),
    "transposed": lambda: torch.randn(2, 6, 4).mT,
    "one row": lambda: torch.randn(2, 1, 6),
    "one row with a step": lambda: torch.randn(2, 3, 6)[:, :1],
    "half": lambda: torch.randn(2, 4, 6).half(),
    "aligned": lambda: MEMORY[16:64].view(2, 4, 6),
    "misaligned": lambda: MEMORY[17:65].view(2, 4, 6),
    "empty": lambda: torch.randn(0, 4, 6),
    "requires grad": lambda: torch.randn(2, 4, 6, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.randn(2, 4, 6)),
    "frozen": lambda: nn.Parameter(torch.randn(2, 4, 6), requires_grad=False),
    "negative": lambda: torch.zeros(2, 4, 6, dtype=torch.complex64).conj().imag,
    "subclass": lambda: torch.randn(2, 4, 6).as_subclass(Subclass),
    "raising": lambda: torch.randn(2, 4, 6).as_subclass(Raising),
    "uninitialized": nn.UninitializedParameter,
    "inference": lambda: torch.inference_mode()(torch.randn)(2, 4, 6),
    "host": lambda: 1.5,
    "shapeless": Shapeless,
    "sparse": lambda: torch.ones(4, 6).to_sparse_coo(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(4, 6)] * 2),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(4, 6), torch.ones(3, 6)], layout=torch.jagged),
    "expanded": lambda: torch.randn(2, 1, 6).expand(2, 4, 6),
    "channels last": lambda: torch.randn(2, 4, 6, 1).to(memory_format=torch.channels_last),
    "conjugate": lambda: torch.zeros(2, 4, 6, dtype=torch.complex64).conj().real,
    "zeros without memory": lambda: torch._efficientzerotensor(2, 4, 6),
    "meta": lambda: torch.empty(2, 4, 6, device="meta"),
    "numpy": lambda: np.ones((2, 4, 6), np.float32),
    "ours": lambda: ct.full((2, 4, 6), 1, "float32"),
}
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def facts_of(found: Any) -> Any:
    if found is None:
        return None
    where, keys, pointers, given = found
    outs = [None if out is None else (out.pointer, out.key, out.memory.data_ptr()) for out in given]
    return where, list(keys), list(pointers), outs


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_known_tensors_are_read_as_others() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw, known = random.Random(seed), 0
    for _ in range(3000):
        names = draw.choices(list(TENSORS)[: draw.choice((3, len(TENSORS)))], k=draw.randint(1, 4))
        operands = [TENSORS[name]() for name in names]
        operands += [draw.choice(operands)] * (draw.random() < 0.3)  # given twice
        outs = [
            TENSORS[draw.choice(("plain", "batch", "aligned"))]() if draw.random() < 0.6 else None
            for _ in range(draw.randint(1, 2))
        ]
        mode = draw.choice(list(MODES))
        with MODES[mode]():
            made = facts_of(read_arrays(operands, outs, None))
            kept = dict(foreign._known_tensors)
            arrays = [*operands, *[one for one in outs if one is not None]]
            if isinstance(operands[0], torch.Tensor):
                known += foreign.LIBRARIES[0].known(arrays) is not None
            foreign._known_tensors.clear()
            expected = facts_of(read_arrays(operands, outs, None))
            foreign._known_tensors.update(kept)
        assert made == expected, (names, [None if one is None else one.shape for one in outs], mode)
    assert known > 500


def test_tensors_with_known_attributes_are_not_read_one_by_one(read: list[Any]) -> None:
    for _ in range(3):
        assert read_arrays([torch.randn(2, 3), torch.randn(3)], [None, torch.randn(2, 3)], None) is not None
    assert len(read) == 3


def test_a_tensor_that_is_given_twice_is_known_where_it_is_given_twice(
    read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    guards = torch._C._dynamo.guards
    real = guards.TensorGuards
    monkeypatch.setattr(
        guards, "TensorGuards", lambda *given, **how: (made.append(1), real(*given, **how))[1]
    )
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    calls = ((x, x, y), (x, y, x), (x, y, y), (x, y, x.clone()), (x, x, x))
    for number, (first, second, out) in enumerate(calls, 1):
        read.clear()
        for _ in range(3):
            assert read_arrays([first, second], [out], None) is not None
        assert (len(made), len(read)) == (number, 3), number
    for first, second, out in calls:
        read.clear()
        _, found = facts_of(read_arrays([first, second], [out], None))[1:3]
        assert found[:2] == [first.data_ptr(), second.data_ptr()]
        assert not read


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_operand_without_a_shape_among_known_ones_is_not_read(place: int) -> None:
    arrays = [torch.randn(2, 4, 6) for _ in range(3)]
    assert read_arrays(arrays, [None], None) is not None
    other: list[Any] = [*arrays]
    other[place] = Shapeless()
    assert read_arrays(other, [None], None) is None


def test_a_known_tensor_that_requires_a_gradient_is_refused_where_one_is_recorded(read: list[Any]) -> None:
    x, w = torch.randn(2, 3), nn.Parameter(torch.randn(3))
    with torch.no_grad():
        for _ in range(2):
            assert read_arrays([x, w], [None], None) is not None
    assert len(read) == 2
    assert read_arrays([x, w], [None], None) is None


def test_a_known_tensor_without_memory_is_not_read() -> None:
    for _ in range(2):
        x, w = torch.randn(2, 3), torch.randn(3)
        assert read_arrays([x, w], [None], None) is not None
    x.untyped_storage().resize_(0)
    assert read_arrays([x, w], [None], None) is None


def test_other_streams_of_the_call_are_compared(read: list[Any]) -> None:
    arrays, other = [torch.randn(2, 3), torch.randn(3)], streams.new_stream(0)
    for stream in (None, other, streams.default_stream(0)):
        assert (read_arrays(arrays, [None], stream) is None) == (stream is other)
    assert len(read) == 2


def test_queries_with_keys_of_many_lengths_are_known(read: list[Any]) -> None:
    q = torch.randn(1, 2, 1, 4)
    calls = [(q, k, k.clone()) for k in (torch.randn(1, 2, length, 4) for length in range(1, 65))]
    for expected in (3 * len(calls), 0):
        read.clear()
        for operands in calls:
            assert read_arrays(operands, [None], None) is not None
        assert len(read) == expected


def test_the_number_of_layouts_is_bounded() -> None:
    for step in range(1, 4 * foreign.MAX_LAYOUTS):
        assert read_arrays([torch.empty_strided((2, 3), (3 * step, step)), torch.ones(3)], [None], None)
    assert [len(found) for found in foreign._known_tensors.values()] == [foreign.MAX_LAYOUTS]
