"""Operators of torch on the fakes: tensors in host memory are tensors on the device."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from cudnn_ct import testing
from cudnn_ct.cuda.interop import ExternalArray, spec_of
from cudnn_ct.cuda.stream import Stream, default_stream
from tests.fake import installed
from tests.fake.cudnn import FakeCudnn
from tests.fake.host import Host

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch


class _TorchHost(Host):
    """The fake driver with tensors of torch, whose memory it does not allocate."""

    def check(self, address: int, nbytes: int) -> None:
        """Accept the memory of torch."""

    def import_array(self, obj: Any, stream: Stream) -> ExternalArray | None:
        if not isinstance(obj, torch.Tensor):
            return super().import_array(obj, stream)
        dtype = np.dtype(str(obj.dtype).removeprefix("torch."))
        spec = spec_of(obj, tuple(obj.shape), obj.stride(), dtype)
        return ExternalArray(obj.data_ptr(), spec, 0, False, obj, None)

    def in_host_memory(self, obj: Any) -> bool:
        return not isinstance(obj, torch.Tensor) and super().in_host_memory(obj)

    def device_of(self, obj: Any) -> int | None:
        return 0 if isinstance(obj, torch.Tensor) else super().device_of(obj)


@pytest.fixture(autouse=True)
def _nothing_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call of a test on tensors in host memory be repeated in another one, where torch computes it."""
    if find_spec("torch") is not None:
        from cudnn_ct.torch import operators, serving, settled

        monkeypatch.setattr(serving, "_settled", settled.SettledCalls(serving.AGAIN))
        for known in operators._known.values():
            known.clear()


@pytest.fixture(autouse=True)
def _methods_are_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks end as the first ones do, however many other tests of the process had."""
    if find_spec("torch") is not None:
        from cudnn_ct.torch import serving

        monkeypatch.setattr(serving._replaced, "_rebound", 0)


@pytest.fixture
def kernels_on_cpu() -> Iterator[None]:
    """Tensors in host memory have the kernels of CUDA tensors."""
    from cudnn_ct.torch.kernels import KERNELS

    library = torch.library.Library("cudnn_ct", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernels that raise are replaced
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU", allow_override=True)
    yield
    library._destroy()


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on tensors in host memory do not need the dispatcher, as those on CUDA tensors."""
    from torch.autograd import forward_ad

    from cudnn_ct.torch import operators

    def way(tensors: Any) -> object:
        plain = all(one is None or (type(one) in operators.PLAIN and not one.is_neg()) for one in tensors)
        nothing_else = not operators._modes() and operators._transformations() is None
        if (
            not plain
            or not nothing_else
            or operators._tracing() is not None
            or forward_ad._current_level >= 0
        ):
            return operators._DISPATCHED
        grad = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
        return operators._RECORDED if grad else operators._COMPUTED

    monkeypatch.setattr(operators, "_way", way)


@pytest.fixture
def door(kernels_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    """The operators on tensors in host memory, with a cuDNN of Python functions."""
    from cudnn_ct.torch import prepared

    monkeypatch.setattr(installed, "Host", _TorchHost)
    monkeypatch.setattr(prepared, "current_stream", default_stream)
    gc.collect()
    never = testing.replay_after(10**9)  # captures of the fakes take memory that is not theirs for factors
    # The gradient of an average has an operand without values, which the fake converts to float64.
    unread = np.errstate(invalid="ignore")
    with installed.host_installed() as host, installed.cudnn_installed(host) as cudnn, never, unread:
        yield cudnn
