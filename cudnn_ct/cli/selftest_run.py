"""Run a row of the selftest, and compare the result with the reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import cudnn_ct as ct

from .._lib import load
from .._libraries import FULL
from ..errors import CudnnError
from ..reference.dropout import dropout
from ..reference.rnn import rnn, rnn_backward
from ..shapes.rnn import rnn_parameters
from ..typing import Layout, Precision
from .selftest_cases import Case, Inputs
from .selftest_report import FAILED, OK, Outcome, outcome_of

# A GPU may lack these: bfloat16 and attention need Ampere, that of float8 Hopper, int8 products need compute
# capability 6.1.
# If cuDNN does not support another dtype, it lacks some of its engines.
DISPENSABLE = ("bfloat16", "int8")
# Causal convolutions and graphs of nodes need a newer cuDNN and its library libcudnn_ext.
CAUSAL = ("causal_conv1d", "fft_causal_conv1d", "b2b_causal_conv1d")
NODES = ("graph_aggregate", "graph_attention")
OF_SOME = ("attention", "clear_padding", "scaled_attention", *CAUSAL, *NODES)


def attempt(case: Case) -> Outcome:
    """Run a row; errors become its outcome. A JIT wheel lacks libraries, and the error names the one."""
    row = Outcome(case.name, FAILED, case.dtype, case.layout, tolerance=case.tolerance)
    may_lack = case.dtype in DISPENSABLE or case.operation.startswith(OF_SOME) or load().kind != FULL
    return outcome_of(row, partial(_compared, case), may_lack=may_lack)


def _compared(case: Case, row: Outcome) -> Outcome:
    run = _OWN.get(case.operation, _against_reference)
    pairs = run(case, case.inputs())
    wrong = [text for name, got, wanted in pairs if (text := _unlike(name, got, wanted))]
    error = max((_error(got, wanted) for _, got, wanted in pairs if wanted is not None), default=0.0)
    if wrong:
        error = float("inf")
    fine = error <= case.tolerance
    detail = "; ".join(wrong) or ("" if fine else "differs from the reference")
    algorithm = _algorithm() or case.operation
    return row._replace(verdict=OK if fine else FAILED, algorithm=algorithm, error=error, detail=detail)


Pair = tuple[str, Any, Any]
"""The name of a result, the result of the device and the expected one; both are host arrays."""


def _against_reference(case: Case, inputs: Inputs) -> list[Pair]:
    place = partial(_placed, layout=case.layout)
    operands = [place(value) for value in inputs.operands]
    keywords = {name: place(value) for name, value in inputs.keywords.items()}
    result = getattr(ct, case.operation)(*operands, **keywords, **inputs.device_keywords)
    expected = getattr(ct.reference, case.operation)(*inputs.operands, **inputs.keywords)
    names = getattr(result, "_fields", ("result",))
    pairs = [
        (name, _on_host(got), wanted)
        for name, got, wanted in zip(names, _several(result), _several(expected), strict=True)
    ]
    updated = [name for name in keywords if name.startswith("running_")]
    return pairs + [(name, _on_host(keywords[name]), inputs.keywords[name]) for name in updated]


def _dropout(case: Case, inputs: Inputs) -> list[Pair]:
    """Check the kept elements and the gradient; cuDNN decides which elements are dropped."""
    place, probability = partial(_placed, layout=case.layout), 0.25  # exact in float32, which cuDNN uses
    (x,) = inputs.operands
    state = ct.DropoutState(probability, seed=1)
    y, mask = ct.dropout(place(x), state)
    dx = ct.dropout_backward(place(x + 4), mask, state)
    kept = _on_host(y) != 0
    share = float(kept.mean())
    if abs(share - (1 - probability)) > 0.1:  # of a thousand: seven standard deviations
        raise CudnnError(f"kept {share:.2f} of all elements, expected about {1 - probability}")
    wanted = dropout(x, kept, probability), dropout(x + 4, kept, probability)
    return [("y", _on_host(y), wanted[0]), ("dx", _on_host(dx), wanted[1])]


def _recurrent(case: Case, inputs: Inputs) -> list[Pair]:
    """Run an RNN forward and backward, and compare each part of the array of weight gradients."""
    spec, x, weights, h0, dhy, dy = inputs.operands
    lengths = (4, 2, 3)
    strict: Precision | None = "float32" if case.dtype == "float32" else None
    net = ct.RNN(
        spec.mode, 8, 16, 2, direction=spec.direction, dtype=case.dtype, precision=strict, algo="standard"
    )
    w = net.pack_params(weights)
    y, hy, _, reserve = net.forward(ct.asarray(x), w, ct.asarray(h0), lengths=lengths, training=True)
    dx, dh0, _ = net.backward_data(ct.asarray(dy), reserve, ct.asarray(dhy))
    dw = net.backward_weights(reserve).numpy()
    expected = rnn(x, weights, spec, h0=h0, lengths=lengths)
    gradients = rnn_backward(x, weights, spec, dy, dhy=dhy, h0=h0, lengths=lengths)
    wanted = np.empty_like(dw)
    for row, part in zip(rnn_parameters(spec), gradients.dweights, strict=True):
        row.view(wanted)[...] = part
    results = {"y": (y, expected.y), "hy": (hy, expected.hy), "dx": (dx, gradients.dx)}
    results["dh0"] = (dh0, gradients.dh0)
    pairs = [(name, _on_host(got), want) for name, (got, want) in results.items()]
    return [*pairs, ("dw", dw, wanted)]


_OWN = {"dropout": _dropout, "RNN": _recurrent}


def _placed(value: Any, layout: Layout) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return ct.asarray(value, layout=layout if 3 <= value.ndim <= 5 else None)


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def _on_host(result: Any) -> Any:
    return None if result is None else result.numpy()


def _unlike(name: str, got: Any, wanted: Any) -> str:
    """Return how a result differs in shape or dtype; empty if it does not."""
    if (got is None) != (wanted is None):
        return f"{name} is {'missing' if got is None else 'not expected'}"
    if got is None or (got.shape, got.dtype) == (wanted.shape, wanted.dtype):
        return ""
    return f"{name} is {got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}"


def _error(got: Any, wanted: Any) -> float:
    """Return the largest difference divided by the largest element or 1; infinite for NaN."""
    if got is None or got.shape != wanted.shape:
        return float("inf")
    ours, theirs = got.astype(np.float64), wanted.astype(np.float64)
    largest = float(np.abs(ours - theirs).max(initial=0)) / max(float(np.abs(theirs).max(initial=0)), 1.0)
    return largest if largest == largest else float("inf")


def _algorithm() -> str:
    """Return the algorithm of the last call; empty if there was none."""
    plan = ct.last_plan()
    if plan is None:
        return ""
    if plan.candidate is not None:
        return f"{plan.candidate.backend} {plan.candidate.algorithm}"
    return plan.plan.splitlines()[0].removeprefix("chosen: ").removeprefix("cudnn")
