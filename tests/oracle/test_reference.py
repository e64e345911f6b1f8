"""``cudnn_ct.reference`` against the independent answers, on the drawn cases and the edge cases."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cudnn_ct import reference
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_parameters, rnn_spec

from . import by_loops
from .answer import GATES, Answer
from .answer_cases import DRAWS, cases
from .test_answers import EDGES, differences

# `scale` writes into its operand, and `transform` has no arithmetic: tests/unit/test_reference_tensor.py.
# Results that are float32 for operands of any dtype, and operands of float8, have tests of their own.
FLOAT8 = {"scaled_matmul": ("a", "b"), "scaled_conv": ("x", "w")}  # and their operands of float8
FLOAT32 = {"attention", "attention_backward", *FLOAT8}
FUSIONS = {  # operations without float64, and the dtype of their operands
    "batch_norm_finalize": np.float32,
    "conv_backward_data_relu_batch_norm": np.float16,
    "conv_backward_filter_scale_bias_relu": np.float16,
    "conv_batch_norm_statistics": np.float32,
    "conv_scale_bias_activation": np.float32,
    "scaled_attention": ml_dtypes.float8_e4m3fn,
}
OPERATIONS = sorted(set(DRAWS) & set(reference.__all__) - {"scale", "transform", *FLOAT32, *FUSIONS})
SCALED = [name for name in OPERATIONS if "beta" in inspect.signature(getattr(reference, name)).parameters]


def compute(name: str, operands: dict[str, Any], **arguments: Any) -> dict[str, np.ndarray]:
    """Call the reference on copies; return its results by name, "" for one that has no name."""
    given = copy.deepcopy(operands)
    arguments = dict(arguments)
    function = "reduce_with_indices" if name == "reduce" and arguments.pop("indices", False) else name
    result = getattr(reference, function)(**given, **arguments)
    updated = {key: given.pop(key) for key in ("running_mean", "running_var", "out") if key in given}
    if name != "fill":
        for key, value in given.items():
            assert value is None or value.tobytes() == operands[key].tobytes(), f"{name} wrote to {key}"
    if not hasattr(result, "_asdict"):
        return {"": np.asarray(result)}
    found = {key: value for key, value in result._asdict().items() if value is not None}
    return found | {key: value for key, value in updated.items() if key != "out"}


def check(name: str, operands: dict[str, Any], arguments: dict[str, Any]) -> None:
    wanted = by_loops.ANSWERS[name](operands, arguments)
    got = compute(name, operands, **arguments)
    if "" in got:
        got = {next(iter(wanted)): got[""]}
    assert set(got) == set(wanted)
    found = {
        key: Answer(np.asarray(value, wanted[key].value.dtype), wanted[key].scale, wanted[key].exact_only)
        for key, value in got.items()
    }
    assert not list(differences({key: wanted[key] for key in got}, found)), (name, arguments)


@pytest.mark.parametrize("name", OPERATIONS)
def test_reference_agrees_with_loops(name: str) -> None:
    for operands, arguments in cases(name):
        check(name, operands, arguments)


@pytest.mark.parametrize(
    ("name", "operands", "arguments"),
    [edge for edge in EDGES if edge[0] in OPERATIONS and not isinstance(edge[2].get("padding"), np.ndarray)],
)
def test_reference_agrees_with_loops_when_operands_are_empty_or_infinite(
    name: str, operands: dict[str, Any], arguments: dict[str, Any]
) -> None:
    check(name, operands, arguments)


@pytest.mark.parametrize("name", SCALED)
def test_reference_scales_its_result_and_adds_out(name: str) -> None:
    for operands, arguments in cases(name, 5):
        plain = compute(name, operands, **arguments)
        first = next(iter(plain))
        out = np.full(plain[first].shape, 3.0)
        factors = {"alpha": 2.0} if "alpha" in inspect.signature(getattr(reference, name)).parameters else {}
        scaled = compute(name, operands, **arguments, **factors, beta=0.5, out=out)
        with np.errstate(invalid="ignore"):
            wanted = factors.get("alpha", 1.0) * plain[first] + 1.5
        np.testing.assert_allclose(scaled[first], wanted, rtol=1e-12)
        np.testing.assert_array_equal(out, scaled[first])
        for other in set(plain) - {first}:
            np.testing.assert_array_equal(scaled[other], plain[other])


# Operands that are float32 beside results in half precision.
PARAMETERS = ("scale", "bias", "mean", "var", "invstd", "running_mean", "running_var", "dscale", "dbias")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"ctc_loss"}))
def test_reference_rounds_the_result_of_float64(name: str, dtype: type) -> None:
    wider = {*PARAMETERS, "invrms"} - (
        {"bias", "dbias"} if name.startswith(("matmul", "conv_bias")) else set()
    )
    wider = {"dw", "dbias"} if name.startswith("causal") else wider
    wider = {"dw_proj", "dw_mixer", "dskip_bias"} if name.startswith("b2b") else wider
    if name.startswith("graph_attention"):
        wider = {"mask", "scores", "dx", "dtarget", "dw", "dedges"}
    for operands, arguments in cases(name, 10):
        narrow = {
            key: None if value is None else value.astype(np.float32 if key in wider else dtype)
            for key, value in operands.items()
        }
        wide = {key: None if value is None else value.astype(np.float64) for key, value in narrow.items()}
        got, exact = compute(name, narrow, **arguments), compute(name, wide, **arguments)
        for key, value in got.items():
            if value.dtype.kind == "i":
                np.testing.assert_array_equal(value, exact[key])
                continue
            assert value.dtype == (np.float32 if key in wider else dtype), key
            kind = ml_dtypes.finfo(value.dtype)
            with np.errstate(over="ignore"):
                wanted = exact[key].astype(value.dtype).astype(np.float64)
            limits = {"rtol": float(kind.eps), "atol": float(kind.smallest_subnormal)}
            np.testing.assert_allclose(value.astype(np.float64), wanted, **limits, err_msg=key)


def test_reference_ctc_loss_agrees_with_loops_when_probabilities_underflow() -> None:
    rng = np.random.default_rng(0)
    logits = 5 * rng.standard_normal((300, 1, 30))
    labels = {"labels": rng.integers(1, 30, (1, 60)), "label_lengths": [60], "input_lengths": [300]}
    assert compute("ctc_loss", {"logits": logits}, **labels)["loss"].min() > 800  # exp(-800) is 0 in float64
    check("ctc_loss", {"logits": logits}, labels)


@pytest.mark.parametrize("name", sorted(FLOAT32))
def test_reference_agrees_with_loops_but_for_float32(name: str) -> None:
    single = ("stats", "amax")
    for operands, arguments in cases(name):
        if name in FLOAT8:
            given = {key: one for key, one in operands.items() if one is not None}
            kinds = {key: ml_dtypes.float8_e4m3fn if key in FLOAT8[name] else np.float32 for key in given}
            arguments = arguments | {"out_dtype": "float32"}
        else:
            kinds = dict.fromkeys(operands, np.float64) | {"stats": np.float32}
            kinds |= {"bias": bool} if "mask" in arguments else {}
            given = operands
        narrow = {key: one.astype(kinds[key]) for key, one in given.items()}
        wide = {key: one.astype(np.float64) for key, one in narrow.items()}
        keywords = {key: one for key, one in arguments.items() if key != "mask"}
        result = getattr(reference, name)(**narrow, **keywords)._asdict()
        wanted = by_loops.ANSWERS[name](wide, arguments)
        got = {key: one for key, one in result.items() if one is not None}
        assert set(got) == set(wanted)
        for key, one in got.items():
            unit = 2.0**-24 if key in single or name in FLOAT8 else 2.0**-50
            right, bound = wanted[key].value, unit * wanted[key].scale
            same = (one == right) | (
                np.abs(one.astype(np.float64) - np.where(np.isinf(right), 0, right)) <= bound
            )
            assert same.all(), (key, arguments)


@pytest.mark.parametrize("name", sorted(FUSIONS))
def test_reference_agrees_with_loops_without_float64(name: str) -> None:
    """Results are rounded once, but for the weights of float8 and activations that are computed again."""
    dtype = FUSIONS[name]
    between = 2.0**-11 if name.startswith("conv_backward_filter") else 2.0**-24
    for operands, arguments in cases(name):
        given = {key: one for key, one in operands.items() if one is not None}
        if name == "scaled_attention":  # heads of 16
            given |= {key: np.repeat(given[key], 2, axis=3) for key in "qkv"}
            if given.keys() & {"scale_s", "descale_s"}:
                given |= {"scale_s": np.full(1, 64.0), "descale_s": np.full(1, 1 / 64)}
        halves = (
            given if name.startswith("conv_backward_filter") else ("dy", "x", "w", "residual", "q", "k", "v")
        )
        kinds = {key: np.dtype(dtype if key in halves else np.float32) for key in given}
        narrow = {key: one.astype(kinds[key]) for key, one in given.items()}
        wide = {key: one.astype(np.float64) for key, one in narrow.items()}
        exact = {"eq_dtype": "float32"} if name == "batch_norm_finalize" else {}
        result = getattr(reference, name)(**narrow, **arguments, **exact)
        weights = {"weights": "float8_e4m3"} if name == "scaled_attention" else {}
        wanted = by_loops.ANSWERS[name](wide, arguments | weights)
        first = next(iter(wanted))
        found = result._asdict() if hasattr(result, "_asdict") else {first: result}
        got = {key: one for key, one in found.items() if one is not None}
        assert set(got) == set(wanted)
        for key, one in got.items():
            right, scale, _, ambiguous, rounded = wanted[key]
            info = ml_dtypes.finfo(one.dtype)
            bound = float(info.eps) * np.abs(right) + float(info.tiny) + between * scale
            if name == "scaled_attention" and rounded is not None:
                bound = bound + 2.0**-4 * rounded
            judged = np.ones(right.shape, bool) if ambiguous is None else ~ambiguous
            assert (np.abs(one.astype(np.float64) - right) <= bound)[judged].all(), (key, arguments)


# --- recurrent networks ---


def compute_rnn(operands: dict[str, Any], arguments: dict[str, Any], dtype: str) -> dict[str, np.ndarray]:
    """Run the reference forward and backward on operands of one dtype; name results as the answers do."""
    weights, x = operands["weights"], operands["x"]
    biases = {(): "no_bias", ("bW",): "single_inp_bias", ("bR",): "single_rec_bias"}
    found = tuple(bias for bias in ("bW", "bR") if any(f".{bias}_" in name for name in weights))
    gate = GATES[arguments["mode"]][0]
    hidden, output = weights[f"l0.R_{gate}"].shape
    spec = rnn_spec(
        arguments["mode"],
        x.shape[-1],
        hidden,
        arguments["num_layers"],
        direction=arguments["direction"],
        input_mode="linear" if f"l0.W_{gate}" in weights else "skip",
        bias=biases.get(found, "double_bias"),
        projection_size=0 if output == hidden else output,
        clip=arguments["clip"],
        dtype=dtype,
    )
    given = {key: operands.get(key) for key in ("h0", "c0")} | {"lengths": arguments["lengths"]}
    result = rnn(x, weights, spec, **given, padding=arguments["padding_value"])._asdict()
    incoming = {key: operands.get(key) for key in ("dy", "dhy", "dcy")}
    if any(value is not None for value in incoming.values()):
        back = rnn_backward(x, weights, spec, **incoming, **given)
        result |= {"dx": back.dx, "dhx": back.dh0, "dcx": back.dc0}
        names = [row.name for row in rnn_parameters(spec)]
        result |= {f"dweights/{key}": one for key, one in zip(names, back.dweights, strict=True)}
    return {key: value for key, value in result.items() if value is not None}


def rnn_draws() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for operands, arguments in cases("RNN", 150):
        clips_c0 = arguments["clip"] and operands.get("c0") is not None  # the loops do not clip it
        if arguments["layout"] == "sequence_major" and not clips_c0:
            yield operands, arguments


def test_reference_rnn_agrees_with_loops() -> None:
    for operands, arguments in rnn_draws():
        wanted = by_loops.ANSWERS["RNN"](operands, arguments)
        found = {
            key: Answer(np.asarray(value, np.float64), wanted[key].scale)
            for key, value in compute_rnn(operands, arguments, "float64").items()
        }
        assert not list(differences(wanted, found)), arguments


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_reference_rnn_rounds_the_result_of_float64(dtype: str) -> None:
    def cast(value: Any, to: Any) -> Any:
        if isinstance(value, dict):
            return {key: cast(one, to) for key, one in value.items()}
        return None if value is None else value.astype(to)

    kind = as_dtype(dtype).numpy
    for operands, arguments in rnn_draws():
        narrow = cast(operands, kind)
        exact = compute_rnn(cast(narrow, np.float64), arguments, "float64")
        for key, value in compute_rnn(narrow, arguments, dtype).items():
            assert value.dtype == kind
            wanted = exact[key].astype(kind).astype(np.float64)
            limits = {"rtol": float(ml_dtypes.finfo(kind).eps), "atol": float(ml_dtypes.finfo(kind).tiny)}
            np.testing.assert_allclose(value.astype(np.float64), wanted, **limits, err_msg=key)
