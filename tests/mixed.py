"""Calls of all operations, ready to be made by any thread in any order, with the results of each made alone.

The rows are those of the selftest; their operands are copied to the device once, and shared by all callers.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_rows import Case, Inputs
from cudnn_ct.cuda import driver
from cudnn_ct.errors import CudnnWarning
from tests.causal_cases import unavailable
from tests.layers import several
from tests.op_cases import CASES

# Their last bits may vary from run to run; `config.deterministic` rejects such algorithms of convolutions.
VARY = {name for row in CASES for name in row.varies}
WRITES_IN_PLACE = {"fill", "scale"}


class MixedCall:
    """One row of the selftest with its operands on the current device.

    Attributes
    ----------
    expected : tuple of numpy arrays or None
        The results of the call made alone.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        inputs = case.inputs()
        self._run = self._network(*inputs.operands) if case.operation == "RNN" else self._operation(inputs)
        self.expected = on_host(self())

    def __call__(self) -> tuple[Any, ...]:
        """Make the call on the stream in use; return its results, on the device."""
        return self._run()

    def compare(self, got: Sequence[Any]) -> None:
        """Compare results on the host with those of the call alone: bit for bit, unless they may vary."""
        for ours, theirs in zip(got, self.expected, strict=True):
            if theirs is None:
                assert ours is None, self
                continue
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), self
            if self.case.operation in VARY:
                ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
                atol = self.case.tolerance * max(1.0, float(np.abs(theirs).max(initial=0)))
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=repr(self))
            else:
                assert ours.tobytes() == theirs.tobytes(), f"{self} differs from the same call made alone"

    def __repr__(self) -> str:
        return f"{self.case.name} of {self.case.dtype}, {self.case.layout}"

    def _operation(self, inputs: Inputs) -> Callable[[], tuple[Any, ...]]:
        operation = getattr(ct, self.case.operation)
        operands = [self._place(value) for value in inputs.operands]
        # Running statistics are updated, so that no two calls would have equal results.
        shared = {name: value for name, value in inputs.keywords.items() if not name.startswith("running_")}
        keywords = {name: self._place(value) for name, value in shared.items()} | inputs.device_keywords
        if self.case.operation in WRITES_IN_PLACE:
            return lambda: several(operation(operands[0].copy(), *operands[1:], **keywords))
        return lambda: several(operation(*operands, **keywords))

    def _network(self, spec: Any, x: Any, weights: Any, h0: Any, dhy: Any, dy: Any) -> Callable[[], Any]:
        strict = "float32" if self.case.dtype == "float32" else None
        sizes = (spec.input_size, spec.hidden_size, spec.num_layers)
        net = ct.RNN(
            spec.mode, *sizes, direction=spec.direction, dtype=spec.dtype, precision=strict, algo="standard"
        )
        w, x, h0, dhy, dy = net.pack_params(weights), *map(ct.asarray, (x, h0, dhy, dy))

        def passes() -> tuple[Any, ...]:
            y, hy, _, reserve = net.forward(x, w, h0, lengths=(4, 2, 3), training=True)
            dx, dh0, _ = net.backward_data(dy, reserve, dhy)
            return y, hy, dx, dh0, net.backward_weights(reserve)

        return passes

    def _place(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return ct.asarray(value, layout=self.case.layout if 3 <= value.ndim <= 5 else None)


def offered(case: Case) -> bool:
    """Return whether this cuDNN has the function of a row."""
    return not unavailable(case.operation)


def mixed_calls(wanted: Callable[[Case], bool] = lambda _: True) -> list[MixedCall]:
    """Return rows of the selftest as calls on the current device.

    The mask of dropout depends on the earlier calls with its random state, so its rows are left out.
    """
    rows = [case for case in cases() if case.operation != "dropout" and wanted(case) and offered(case)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudnnWarning)  # operands may be copied to another layout
        return [MixedCall(case) for case in rows]


def on_host(results: Sequence[Any]) -> tuple[Any, ...]:
    """Wait for results, and copy them to NumPy arrays."""
    return tuple(None if one is None else one.numpy() for one in results)


def make_mixed(calls: Sequence[MixedCall], count: int, seed: int, streams: Sequence[Any]) -> None:
    """Make ``count`` calls in an order of the seed, each on one of the streams, and compare all results.

    Up to 16 results are compared at once, so that work of several streams is pending meanwhile.
    """
    rng = np.random.default_rng(seed)
    pending: list[tuple[MixedCall, tuple[Any, ...]]] = []
    for number in range(count):
        call = calls[rng.integers(len(calls))]
        with ct.use(stream=streams[rng.integers(len(streams))]):
            pending.append((call, call()))
        if len(pending) >= 16 or number == count - 1:
            for one, results in pending:
                one.compare(on_host(results))
            pending.clear()


def in_threads(count: int, work: Callable[[int], object], timeout: float = 120) -> None:
    """Do work in threads that begin at the same moment; raise the first exception of any of them."""
    begin = threading.Barrier(count)

    def body(number: int) -> None:
        begin.wait(timeout)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for one in [pool.submit(body, number) for number in range(count)]:
            one.result(timeout)


def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do work in another thread, which ends; return its result, or raise its exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result()


@contextmanager
def no_collecting() -> Iterator[None]:
    """Collect garbage only on request, so that a call behaves the same each time.

    Objects stay frozen, because ``gc.unfreeze()`` would also unfreeze those of ``tests/conftest.py``.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def own_stream(device: int = 0) -> Any:
    """Create a stream with cuda.core, which does not wait for the default stream."""
    where = driver.core().Device(device)
    where.set_current()
    return where.create_stream()
