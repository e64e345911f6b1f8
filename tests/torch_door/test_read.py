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


class Known:
    """Readers of tensors, as calls keep them."""

    def __init__(self) -> None:
        self.readers: dict[tuple[int, ...], list[Any]] = {}

    def find(self, operands: list[Any], outs: list[Any]) -> tuple[Any, Any] | None:
        """Return the addresses and the keys of known arrays."""
        arrays = [*operands, *[one for one in outs if one is not None]]
        try:
            found = self.readers.get(foreign.place_of(arrays), ())
        except Exception:
            return None
        for read, keys in found:
            if (facts := read(arrays)) is not None:
                return facts, keys
        return None

    def learn(self, operands: list[Any], outs: list[Any], found: Any) -> None:
        """Keep a reader of arrays that were read."""
        arrays = [*operands, *[one for one in outs if one is not None]]
        keys = [one for one in found[1] if one is not None]
        if all(foreign.library_of(type(one)) is foreign.LIBRARIES[0] for one in arrays):
            read = foreign.LIBRARIES[0].reader(arrays, keys)
            if read is not None:
                readers = self.readers.setdefault(foreign.place_of(arrays), [])
                readers[:] = [(read, keys), *readers[:15]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_known_tensors_are_read_as_others() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw, count, known = random.Random(seed), 0, Known()
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
            made, expected = known.find(operands, outs), read_arrays(operands, outs, None)
            case = names, [None if one is None else one.shape for one in outs], mode
            if made is not None:
                assert expected is not None, case
                (address, *pointers), keys = made
                where, expected_keys, expected_pointers, given = expected
                results = [(one.pointer, one.key) for one in given if one is not None]
                assert address == where.handle
                assert keys == [one for one in expected_keys if one is not None], case
                assert pointers == [*expected_pointers, *[pointer for pointer, _ in results]], case
                assert keys[len(operands) :] == [key for _, key in results], case
                count += 1
            elif expected is not None:
                known.learn(operands, outs, expected)
    assert count > 500


def test_a_tensor_that_is_given_twice_is_known_where_it_is_given_twice() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    calls = ((x, x, y), (x, y, x), (x, y, y), (x, y, x.clone()), (x, x, x))
    known = Known()
    for *operands, out in calls:
        assert known.find(operands, [out]) is None
        known.learn(operands, [out], read_arrays(operands, [out], None))
    for *operands, out in calls:
        found = known.find(operands, [out])
        assert found is not None
        assert found[0][1:] == (*[one.data_ptr() for one in operands], out.data_ptr())


def learnt(*arrays: Any) -> tuple[list[Any], Known]:
    """Return arrays, and the readers that know them."""
    known = Known()
    known.learn([*arrays], [None], read_arrays(arrays, [None], None))
    assert known.find([*arrays], [None]) is not None
    return [*arrays], known


def check_unread(arrays: list[Any], known: Known) -> None:
    assert known.find(arrays, [None]) is None
    assert read_arrays(arrays, [None], None) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_operand_without_a_shape_among_known_ones_is_not_read(place: int) -> None:
    arrays, known = learnt(*[torch.randn(2, 4, 6) for _ in range(3)])
    arrays[place] = Shapeless()
    check_unread(arrays, known)


def test_a_known_tensor_that_requires_a_gradient_is_refused_where_one_is_recorded() -> None:
    with torch.no_grad():
        given = learnt(torch.randn(2, 3), nn.Parameter(torch.randn(3)))
    check_unread(*given)


def test_a_known_tensor_without_memory_is_not_read() -> None:
    arrays, known = learnt(torch.randn(2, 3), torch.randn(3))
    arrays[0].untyped_storage().resize_(0)
    check_unread(arrays, known)


def test_other_streams_of_the_call_are_compared() -> None:
    arrays, other = [torch.randn(2, 3), torch.randn(3)], streams.new_stream(0)
    for stream in (None, other, streams.default_stream(0)):
        assert (read_arrays(arrays, [None], stream) is None) == (stream is other)
