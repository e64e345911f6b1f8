"""Makes a drawn call and compares its results with independent answers."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.plans.axes import MAX_CALLS
from tests.operations import each

from .calls import made, planned, weights_of
from .devices import Device, Placed
from .draw import Call
from .jitted import JIT, can_jit, is_installed, jitted
from .operands import Laid, Tensor, lay_out, rounded, stepped, values_of
from .recipes import Derived

__all__ = ["UNIT", "Verdict", "compared", "derived_value", "judge", "operands_of"]

# The bound of an error: FACTOR * u * scale for the arithmetic, and ROUNDINGS of intermediate results to the
# dtype of the result. u is the unit roundoff of the arithmetic, scale the magnitude of what is added.
ROW_NORMS = ("layer_norm", "rms_norm", "ada_layer_norm")
_OF_ROWS = [f"{name}{step}" for name in ROW_NORMS for step in ("", "_backward")]
_OF_IMAGES = ("instance_norm", "instance_norm_backward")
FACTOR = {
    **dict.fromkeys((*_OF_ROWS, *_OF_IMAGES, "attention_backward", "batch_norm_backward"), 64),
    **dict.fromkeys(("batch_norm_finalize", "batch_norm_training"), 64),
    **dict.fromkeys(("attention", "scaled_attention", "softmax_backward"), 32),
    **dict.fromkeys(("RNN", "ctc_loss"), 256),
    "lrn_backward": 128,
    "scaled_conv": 16,  # of sums of 32 products each
    "scaled_matmul": 8,
    **each("factor"),
}
ROUNDINGS = {
    "activation_backward": 3,  # cuDNN computes the derivative from y, which was rounded
    "pool_backward": 4,  # overlapping windows are added in the dtype of the result
    **dict.fromkeys(("attention", "batch_norm_finalize", "scaled_attention"), 2),
    **dict.fromkeys(("softmax", "softmax_backward"), 2),
    **dict.fromkeys(("batch_norm_backward", "instance_norm_backward", "lrn_backward", "matmul_backward"), 3),
    **dict.fromkeys((*_OF_ROWS, "attention_backward", "batch_norm_training", "instance_norm", "matmul"), 4),
    **dict.fromkeys(("conv_batch_norm_statistics", "conv_bias_activation", "conv_scale_bias_activation"), 4),
    **dict.fromkeys(("conv_backward_data_relu_batch_norm", "conv_backward_filter_scale_bias_relu"), 4),
    **each("roundings"),
}
UNIT = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53, "tf32": 2**-10}
UNIT |= {"float8_e4m3": 2**-4, "float8_e5m2": 2**-3, "float8 sums": 2**-13}  # tensor cores keep 14 bits
# Below these, numbers may be flushed to zero, or be products of numbers that were.
TINY = {"float16": 2**-22, "bfloat16": 1e-35, "float32": 1e-35, "float64": 1e-300}
TINY |= {"float8_e4m3": 2**-9, "float8_e5m2": 2**-16}
LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.79e308}
LARGEST |= {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}


FLOAT8 = ("float8_e4m3", "float8_e5m2")

SUMS_OF_FLOAT8 = ("scaled_attention", "scaled_conv", "scaled_matmul")

# Intermediate results have the dtype of the operands, also if the result is float32.
HALF_BETWEEN = (
    *("attention_backward", "conv_backward_data_relu_batch_norm", "conv_batch_norm_statistics"),
    "scaled_attention",
)

# Engines that transform tiles (Winograd, FFT) have errors relative to the largest element of a tile.
TRANSFORMED = ("conv", "conv_backward_data", "conv_backward_filter", "conv_transpose", "conv_bias_activation")

# The grid is rounded to the dtype in between; gradients of pixels are added in the dtype; so are states kept.
IN_DTYPE = ("spatial_transformer", "grid_sample_backward", "RNN")


class Verdict(NamedTuple):
    """The outcome of a call: "agrees", "not supported", or "finding" with a description."""

    outcome: str
    detail: str = ""


class Operands(NamedTuple):
    """The operands of a call in host memory, and the same values in float64."""

    laid: dict[str, Laid]
    values: dict[str, np.ndarray]


def judge(call: Call, device: Device, answers: dict[str, Any]) -> Verdict:
    """Make a call and judge its results, what it left alone, and whether it had to be rejected."""
    try:
        verdict = compared(call, device, answers)
        if call.rejected and verdict.outcome == "agrees":
            return Verdict("finding", "computed, but the documentation says that it is rejected")
        return verdict
    except ct.NotSupportedError as error:
        return _rejected(call, device, answers, error)
    except ct.AllocationError as error:
        return Verdict("out of memory", str(error).splitlines()[0])
    except ct.CudnnError as error:
        return Verdict("finding", f"{type(error).__name__}: {str(error)[:600]}")
    except (TypeError, ValueError) as error:
        return Verdict("finding", f"{type(error).__name__}: {str(error)[:600]}")


def _rejected(call: Call, device: Device, answers: dict[str, Any], error: Exception) -> Verdict:
    """A rejection is right only where plain operands are rejected too, or copies exceed a limit."""
    reason = str(error)
    converted = device.kind == "fakes" and "b_scale" in call.operands  # by engines, which the fakes lack
    limited = "workspace_limit" in call.arguments or f"{MAX_CALLS:,} driver calls" in reason
    if call.rejected or call == call.plain or limited or converted:
        return Verdict("not supported", reason)
    try:
        plain = compared(call.plain, device, answers)
    except ct.NotSupportedError:
        return Verdict("not supported", reason)
    if plain.outcome == "agrees":
        return Verdict("finding", f"rejected, but plain operands are computed: {reason[:800]}")
    return plain


def _placed(
    call: Call, device: Device, laid: Mapping[str, Any], laid_out: Any, laid_more: Mapping[str, Any]
) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Copy operands, the result and further results to new memory of the device."""
    late = call.where.late
    operands = {name: device.place(call.operands[name], one, late) for name, one in laid.items()}
    out = None if call.out is None else device.place(call.out, laid_out, late)
    return operands, out, {name: device.place(call.more[name], one, late) for name, one in laid_more.items()}


def _on_other_memory(call: Call) -> bool:
    """Return whether a call is repeated on other memory: about half of all."""
    return sum(one.seed for one in call.operands.values()) % 2 == 0


def compared(call: Call, device: Device, answers: dict[str, Any]) -> Verdict:
    """Make a call and judge its results and what it left alone; what it raises is raised."""
    operands = operands_of(call, answers)
    old = None if call.out is None else values_of(call.out)
    laid_out = None if call.out is None else lay_out(call.out, old)
    laid_more = {name: lay_out(one, values_of(one)) for name, one in call.more.items() if one}
    with device.stream(call.where.stream, call.where.late) as (keywords, stream):
        placed, out, more = _placed(call, device, operands.laid, laid_out, laid_more)
        if not call.where.late:
            device.settle()
        results = _made(call, device, placed, out, more, keywords, laid_out)
        if ct.config.replay and not call.where.late:
            written = [(placed[name], operands.laid[name]) for name in (*call.written, call.alias) if name]
            written += [(out, laid_out)] if out is not None else []
            written += [(more[name], laid) for name, laid in laid_more.items()]
            if _on_other_memory(call):
                before = placed, results  # they keep their memory, which must not be read again
                device.settle()
                for name, one in placed.items():
                    if one.rewrite is not None:
                        one.rewrite(np.zeros_like(operands.laid[name].memory))
                placed, out, more = _placed(call, device, operands.laid, laid_out, laid_more)
                device.settle()
                results = _made(call, device, placed, out, more, keywords, laid_out)
                ct.synchronize(stream)
                del before
            elif all(one.rewrite is not None for one, _ in written):
                results = None  # its memory may be that of the next results
                device.settle()
                for one, laid in written:
                    one.rewrite(laid.memory)
                device.settle()
                results = _made(call, device, placed, out, more, keywords, laid_out)
        ct.synchronize(stream)
        got = {name: _numpy(array) for name, array in results.items()}
    device.settle()
    problem = _untouched(call, operands, placed) or _surroundings("out", call.out, out, laid_out)
    for name, laid in laid_more.items():
        problem = problem or _surroundings(f"{name} of out", call.more[name], more[name], laid)
        got[name] = _elements(call.more[name], laid, more[name].read())
    if problem:
        return Verdict("finding", problem)
    if out is not None:
        first = next(iter(got))
        got[first] = _elements(call.out, laid_out, out.read())
    got |= {
        name: _elements(call.operands[name], operands.laid[name], placed[name].read())
        for name in call.written
    }
    return _agreement(call, answers, operands.values, old, got)


def operands_of(call: Call, answers: dict[str, Any]) -> Operands:
    """Draw the values of the operands and lay them out in host memory."""
    values = {name: values_of(tensor) for name, tensor in call.operands.items() if name not in call.derived}
    for name, derived in call.derived.items():
        given = {"x": values_of(call.operands[name])} if derived.operation == "softmax" else {}
        answer = derived_value(derived, values | given, answers)
        tensor = call.operands[name]
        values[name] = rounded(np.broadcast_to(answer.reshape(tensor.shape), tensor.shape), tensor.dtype)
    tensors = {
        name: tensor._replace(still=()) if name in call.derived else tensor
        for name, tensor in call.operands.items()
    }
    call.operands.update(tensors)
    return Operands({name: lay_out(tensors[name], value) for name, value in values.items()}, values)


def derived_value(derived: Derived, known: dict[str, np.ndarray], answers: dict[str, Any]) -> np.ndarray:
    """Return an operand that is the result of another operation on known operands."""
    operation, result, arguments = derived
    if "scale" in known and "bias" in signature(getattr(ct, operation)).parameters:
        known = known | {"bias": np.zeros_like(known["scale"])}
    value: np.ndarray = answers[operation](known, arguments)[result].value
    return value


def _made(
    call: Call,
    device: Device,
    placed: dict[str, Placed],
    out: Placed | None,
    more: dict[str, Placed],
    keywords: dict[str, Any],
    laid_out: Laid | None,
) -> dict[str, Any]:
    """Make the call as its circumstances say; the results by the names that the answers have for them."""
    arrays = {name: one.array for name, one in placed.items()}
    given = call.arguments | call.factors
    if call.alias:
        keywords = keywords | {"out": arrays[call.alias]}
    if out is not None:
        keywords = keywords | {"out": out.array}
    if call.more:
        further = (more[name].array if name in more else None for name in call.more)
        keywords = keywords | {"out": (keywords.get("out"), *further)}
    if call.where.captured and out is not None and out.rewrite is not None and laid_out is not None:
        made(call, arrays, given, keywords | {"stream": device.capturing_stream})
        device.settle()
        launch = device.capture(lambda stream: made(call, arrays, given, keywords | {"stream": stream}))
        out.rewrite(laid_out.memory)
        device.settle()
        launch()
        return {"out": out.array}
    if call.plan == JIT:
        if is_installed() and can_jit(call.operation, call.operands, given):
            return jitted(call.operation, arrays, given)
        return made(call, arrays, given, keywords)
    return planned(call, arrays, given, keywords) if call.plan else made(call, arrays, given, keywords)


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(ct.asarray(array).numpy(), np.float64)


def _elements(tensor: Tensor, laid: Laid, memory: np.ndarray) -> np.ndarray:
    return np.asarray(stepped(memory, laid.offset, tensor, laid.strides), np.float64)


def _untouched(call: Call, operands: Operands, placed: dict[str, Placed]) -> str:
    """Name the first operand that changed although nothing may write it; empty if there is none."""
    for name, laid in operands.laid.items():
        only_read = name not in (*call.written, call.alias)
        problem = _changed(call.operands[name], laid, placed[name].read(), elements=only_read)
        if problem and call.operands[name].origin not in ("negated", "jax"):
            return f"{name} {problem}"
    return ""


def _surroundings(name: str, tensor: Tensor | None, out: Placed | None, laid: Laid | None) -> str:
    if out is None or laid is None or tensor is None:
        return ""
    problem = _changed(tensor, laid, out.read(), elements=False)
    return f"{name} {problem}" if problem else ""


def _changed(tensor: Tensor, laid: Laid, memory: np.ndarray, elements: bool) -> str:
    before, after = laid.memory, memory
    if not elements and np.prod(tensor.shape):
        before, after = before.copy(), after.copy()
        for part in (before, after):
            stepped(part, laid.offset, tensor, laid.strides)[...] = 0
    if np.array_equal(before, after):
        return ""
    count = int((before != after).sum())
    return (
        f"was written to: {count} bytes {'of it' if elements else 'between or around its elements'} changed"
    )


# --- comparing ---------------------------------------------------------------------------------------------


def _agreement(
    call: Call,
    answers: dict[str, Any],
    values: dict[str, np.ndarray],
    old: np.ndarray | None,
    got: dict[str, np.ndarray],
) -> Verdict:
    unit = UNIT.get(next(iter(call.operands.values())).dtype, 0.0)  # of the coordinates of grids
    known: dict[str, Any] = dict(values)
    if call.operation == "dropout":
        known["mask"] = got["y"] != 0
    if call.operation == "RNN":
        known["weights"] = weights_of(call, values["w"])
    facts = {"u": unit, "weights": next(iter(call.operands.values())).dtype}
    answer = dict(answers[call.operation](known, call.arguments | facts))
    if call.operation == "dropout":
        answer |= answers["dropout_backward"](known, call.arguments)
    if "out" in got:
        (name,) = [one for one in answer if one not in call.written] or list(answer)
        got[name] = got.pop("out")
    if call.operation in ("scale", "fill"):
        got = {"y": got["x"]}
    for place, (name, array) in enumerate(got.items()):
        expected = answer.get(name)
        if expected is None:
            return Verdict("finding", f"there is no answer for the result {name}")
        factors = call.factors if place == 0 else {}
        problem = _difference(call, name, expected, factors, values, values.get(call.alias, old), array)
        if problem:
            return Verdict("finding", problem)
    return Verdict("agrees")


def _difference(
    call: Call,
    name: str,
    expected: Any,
    factors: dict[str, float],
    values: dict[str, np.ndarray],
    old: np.ndarray | None,
    got: np.ndarray,
) -> str:
    """Describe how a result differs from the answer by more than its error bound; empty if it does not."""
    value, scale = np.asarray(expected.value, np.float64), np.asarray(expected.scale, np.float64)
    if got.shape != value.shape:
        return f"{name} has shape {got.shape}, expected {value.shape}"
    alpha, beta = factors.get("alpha", 1.0), factors.get("beta", 0.0)
    dtype = _dtype_of(call, name)
    with np.errstate(all="ignore"):
        want = value if alpha == 1 else alpha * value
        terms = abs(alpha) * np.maximum(scale, np.abs(value))
        if call.operation == "activation_backward":
            terms = np.maximum(terms, np.abs(alpha * values["dy"]))
        if call.operation in TRANSFORMED:
            finite = terms[np.isfinite(terms)]
            terms = np.full_like(terms, finite.max(initial=0.0))
        if beta and old is not None:
            want, terms = want + beta * old, terms + np.abs(beta * old)
        rounded = terms
        if expected.rounded is not None:
            rounded = abs(alpha) * expected.rounded + (np.abs(beta * old) if beta and old is not None else 0)
        bound = _bound(call, dtype, want, terms, rounded)
        if expected.exact_only:
            bound = np.zeros_like(bound)
        most = LARGEST.get(dtype, np.inf)
        same = np.isnan(want) & np.isnan(got) | (want == got) | (np.abs(got - want) <= bound)
        same |= np.isinf(got) & (np.sign(got) == np.sign(want)) & (np.abs(want) + bound >= most)
        if dtype in FLOAT8:  # docs: such values are saturated, infinite or NaN
            same |= np.abs(want) + bound >= most
    if alpha == 0 and call.operation not in ("add", "transform"):  # whether 0 * NaN is computed
        same |= ~np.isfinite(value) | (np.abs(value) > most)
    if expected.ambiguous is not None:
        same |= expected.ambiguous
    if call.operation == "activation_backward" and call.arguments["mode"] == "elu":
        same |= values["y"] == 0  # cuDNN has the slope 1 there: for x of 0, and for negative x that are tiny
    if same.all():
        return ""
    with np.errstate(all="ignore"):
        badness = np.where(same, -1.0, np.nan_to_num(np.abs(got - want) / bound, nan=np.inf, posinf=1e300))
    worst = np.unravel_index(int(np.argmax(badness)), badness.shape)
    place = tuple(map(int, worst))
    return (
        f"{name} {dtype}: {int((~same).sum())} of {same.size} elements differ; at {place} "
        f"got {got[worst]:.9g}, expected {want[worst]:.9g} +- {bound[worst]:.3g}"
    )


def _dtype_of(call: Call, name: str) -> str:
    if call.out is not None and name in ("y", "dx", "dw", "out"):
        return call.out.dtype
    if name == "dbias" and "bias" in call.operands:
        return call.operands["bias"].dtype
    if name in ("stats", "amax", "sums", "square_sums"):
        return "float32"
    if call.operation == "batch_norm_finalize":
        return call.arguments.get("eq_dtype", "float16") if name.startswith("eq_") else "float32"
    if call.operation == "scaled_attention":
        return call.arguments.get("out_dtype", call.operands["q"].dtype)
    if call.operation in ("scaled_conv", "scaled_matmul"):
        return call.arguments.get("out_dtype", "bfloat16")
    if call.operation == "matmul" and "out_dtype" in call.arguments:
        return call.arguments["out_dtype"]
    if call.operation == "transform":
        return call.arguments.get("dtype", call.operands["x"].dtype)
    if name == "indices":
        return "int32"
    if "scale" in call.operands and name not in ("y", "dx", "dz"):
        return call.operands["scale"].dtype
    return next(iter(call.operands.values())).dtype


def _bound(call: Call, dtype: str, want: np.ndarray, terms: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The error that careful arithmetic in the precision of the call may have."""
    if dtype not in UNIT:
        return np.zeros_like(want)
    unit = UNIT[_precision(call)]
    longest = max((tensor.size for tensor in call.operands.values()), default=1)
    factor, roundings = FACTOR.get(call.operation, 16), ROUNDINGS.get(call.operation, 1)
    if call.operation not in SUMS_OF_FLOAT8:
        factor += sqrt(longest)
    factor += max(map(_equal_addends, call.operands.values()), default=0)
    if call.operation in TRANSFORMED:
        factor = max(factor, 8 * sqrt(_products(call) + 64))  # docs/algorithms.md#accuracy
    if call.factors:
        roundings += 2
    between = next(iter(call.operands.values())).dtype if call.operation in HALF_BETWEEN else dtype
    bound = factor * unit * terms + UNIT[dtype] * np.abs(want) + UNIT[between] * (roundings - 1) * rounded
    if call.operation in TRANSFORMED:
        finite = np.abs(want[np.isfinite(want)])
        bound = bound + 6 * UNIT[dtype] * finite.max(initial=0.0)
    return bound * (1 + 1e-6) + TINY[dtype]


def _equal_addends(tensor: Tensor) -> int:
    """The errors of a sum of equal elements that add up: they are rounded alike, in sums of some hundred."""
    repeats = prod(n for axis, n in enumerate(tensor.shape) if axis in tensor.still)
    return min(repeats, 512) if tensor.still else 0


def _products(call: Call) -> float:
    """The number of products that an element of a convolution is the sum of."""
    if call.operation == "conv_backward_filter":
        dy = call.operands["dy"]
        return dy.size / dy.shape[1]
    w, groups = call.operands["w"], call.arguments["groups"]
    forward = call.operation in ("conv", "conv_bias_activation")
    return w.size / w.shape[0] if forward else w.size / w.shape[1] / groups


def _precision(call: Call) -> str:
    """The precision that products and sums of a call have at least."""
    if call.operation in SUMS_OF_FLOAT8:
        return "float8 sums"
    dtype = next(iter(call.operands.values())).dtype
    precision = call.arguments.get("precision")
    if call.operation.startswith(("conv", "matmul")) and call.operation != "conv_backward_bias":
        if dtype == "float32":
            return "float32" if precision == "float32" else "tf32"
        if precision == "as_input":
            return dtype
    if call.operation == "RNN" and dtype == "float32":
        return "tf32"
    if call.operation.startswith(IN_DTYPE):
        return dtype
    return "float64" if dtype == "float64" else "float32"
