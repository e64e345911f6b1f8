"""``cudnn-ct selftest``: compare the results of cuDNN on this GPU with NumPy."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np

import cudnn_ct as ct
from cudnn_doctor import diagnose
from cudnn_doctor.finding import Severity
from cudnn_doctor.read.libraries import FULL
from cudnn_doctor.report import verdict

from .. import _lib
from .._dlopen import find_cudnn
from .._lib import load
from ..availability import available
from ..errors import CudnnError, CudnnWarning, NotSupportedError, format_version
from ..reference.dropout import dropout
from ..reference.rnn import rnn, rnn_backward
from ..shapes.rnn import rnn_parameters
from ..typing import Layout, Precision
from .algorithms import name_here
from .options import json_option
from .output import NOTHING, Column, fail, need_library, progress, say, say_json, show
from .selftest_cases import OPERATIONS, cases
from .selftest_rows import Case, Inputs

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


# --- reports -----------------------------------------------------------------------------------------------


OK, FAILED, SKIPPED = "ok", "failed", "skipped"
SCHEMA = 1  # increased when a key is removed or changes its meaning

COLUMNS: tuple[Column, ...] = (
    ("op", False), ("dtype", False), ("layout", False), ("algorithm", False),
    ("error", True), ("tolerance", True), ("verdict", False), ("", False),
)  # fmt: skip


class Outcome(NamedTuple):
    """The result of one row."""

    name: str
    verdict: str
    dtype: str = ""
    layout: str = ""
    algorithm: str = ""
    error: float | None = None  # largest difference / largest element; None if nothing was compared
    tolerance: float | None = None
    detail: str = ""  # the failure, or the details of a check
    seconds: float = 0.0


def outcome_of(row: Outcome, check: Callable[[Outcome], Outcome], may_lack: bool) -> Outcome:
    """Run a check; its errors become its outcome. Not all GPUs support one that ``may_lack``."""
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CudnnWarning)
        try:
            row = check(row)
        except CudnnError as error:
            skipped = may_lack and isinstance(error, NotSupportedError)
            row = row._replace(verdict=SKIPPED if skipped else FAILED, detail=_words(error))
        except Exception as error:
            row = row._replace(verdict=FAILED, detail=f"{type(error).__name__}: {_words(error)}")
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, CudnnWarning)]
    detail = "; ".join(filter(None, [row.detail, *warned]))
    return row._replace(detail=detail, seconds=time.monotonic() - begin)


def cells(row: Outcome) -> list[str]:
    """Return the cells of ``COLUMNS``."""
    numbers = ("-" if number is None else f"{number:.1e}" for number in (row.error, row.tolerance))
    return [row.name, row.dtype, row.layout, row.algorithm, *numbers, row.verdict, row.detail]


def as_dict(rows: Sequence[Outcome], **about: Any) -> dict[str, Any]:
    """Return all values for JSON. An infinite or NaN error is None; its row has failed."""
    return {"schema": SCHEMA, **about, **counts(rows), "rows": [_plain(row) for row in rows]}


def counts(rows: Sequence[Outcome]) -> dict[str, int]:
    """Return the number of rows for each verdict."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in (OK, FAILED, SKIPPED)}


def _plain(row: Outcome) -> dict[str, Any]:
    finite = row.error is not None and row.error < float("inf")
    return row._asdict() | {"error": row.error if finite else None, "seconds": round(row.seconds, 4)}


def _words(error: Exception) -> str:
    """Return the message of an error in one line: the reasons of candidates follow its first line."""
    return "; ".join(line.strip() for line in str(error).splitlines())


# --- the rows of a selftest without a GPU: checks of the parts of cuDNN that need none ---------------------


def checks() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield the checks by name."""
    for name, check in {"cuDNN loads": _loads, "descriptors": _descriptors, "doctor": _doctor}.items():
        yield name, partial(_checked, name, check)


def _checked(name: str, check: Callable[[], str]) -> Outcome:
    is_part = _lib.version(raises=False) > 0 and load().kind != FULL  # a JIT wheel has no descriptors
    return outcome_of(
        Outcome(name, FAILED), lambda row: row._replace(verdict=OK, detail=check()), may_lack=is_part
    )


def _loads() -> str:
    ct.version()  # raises for a header of another version
    return f"cuDNN {_lib.load().version_text} at {_lib.load().path}"


def _descriptors() -> str:
    specs: dict[Any, Any] = {
        ct.TensorDescriptor: ct.TensorSpec.packed((2, 3, 4, 5), "float16", "nhwc"),
        ct.FilterDescriptor: ct.FilterSpec((8, 3, 3, 3), "float16", "nhwc"),
        ct.ConvolutionDescriptor: ct.ConvolutionSpec((1, 2), (2, 1), (1, 3), groups=2),
        ct.ActivationDescriptor: ct.ActivationSpec("elu", 0.5),
        ct.PoolingDescriptor: ct.PoolingSpec((3, 2), (1, 0), (2, 2), "max"),
        ct.CTCLossDescriptor: ct.CTCLossSpec("softmax", "skip", 100),
        ct.LRNDescriptor: ct.LRNSpec(5, 1e-4, 0.75, 2.0),
        ct.OpTensorDescriptor: ct.OpTensorSpec("mul"),
        ct.ReduceDescriptor: ct.ReduceSpec("add"),
    }
    for kind, spec in specs.items():
        with kind(spec) as made:
            read = made.read()
        if read != spec:
            raise CudnnError(f"{kind.__name__}: cuDNN has {read} for {spec}")
    return f"{len(specs)} created and read back"


def _doctor() -> str:
    """Run the doctor on the cuDNN of this machine, even if it cannot be loaded."""
    diagnosis = diagnose(find_cudnn().path)
    errors = [found for found in diagnosis.findings if found.severity == Severity.ERROR]
    if diagnosis.exit_code():
        raise CudnnError("; ".join(f"{found.code}: {found.message}" for found in errors))
    return verdict(diagnosis)


# --- command -----------------------------------------------------------------------------------------------


@click.command(name="selftest")
@click.option(
    "--op", multiple=True, type=click.Choice(OPERATIONS), metavar="OP",
    help="Run only this operation; may be repeated.",
)  # fmt: skip
@json_option
def selftest_command(op: tuple[str, ...], as_json: bool) -> None:
    """Compare every operation on the GPU, forward and backward, with NumPy.

    Exits with 0 if all rows pass, with 1 after a failure. Without a GPU it prints the reason, checks the
    parts of cuDNN that need none, and exits with 3 (with 1 if a check fails).
    """
    here = available()
    wanted = [case for case in cases() if case.operation in (op or OPERATIONS)]
    chosen = [(case.operation, partial(attempt, case)) for case in wanted] if here else [*checks()]
    rows = []
    with progress("selftest", len(chosen)) as tick:
        for name, check in chosen:
            tick(name)
            rows.append(check())
    if as_json:
        about = {"device": name_here() if here else None, "reason": here.reason or None}
        say_json(as_dict(rows, cudnn=_version(), **about))
    else:
        show(COLUMNS, [cells(row) for row in rows])
        say()
        summary = ", ".join(f"{number} {verdict}" for verdict, number in counts(rows).items() if number)
        say(f"{summary}, in {sum(row.seconds for row in rows):.1f} s")
    if failed := counts(rows)[FAILED]:
        reason = "" if here else f"; and no operation was run: {here.reason}"
        fail(f"{failed} of {len(rows)} failed{reason}")
    if not here:
        need_library()
        fail(f"no operation was run: {here.reason}", NOTHING)


def _version() -> str | None:
    try:
        return format_version(load().version)
    except CudnnError:
        return None
