"""Calls of public functions with hostile arguments, as lines of Python: the same for a seed and a number."""

from __future__ import annotations

import inspect
import random
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.ops.conv.plan import ConvPlan

from .values import ARRAYS, FLOATS, INTEGERS, NAMES, POOLS, SEQUENCES, STREAMS, TEXTS

__all__ = ["line"]


class Base(NamedTuple):
    """A call that is right: the text of a function, of its arguments, and of those by keyword."""

    function: str
    args: tuple[str, ...] = ()
    keywords: dict[str, str] = {}  # noqa: RUF012 - never modified

    def __str__(self) -> str:
        given = [*self.args, *(f"{name}={text}" for name, text in self.keywords.items())]
        return f"{self.function}({', '.join(given)})"


IMAGE, FILTERS = "array((2, 8, 9, 10))", "array((8, 8, 3, 3))"
HALF = ("array((2, 8, 9, 10), 'float16', 'nhwc')", "array((8, 8, 3, 3), 'float16', 'nhwc')")
NETWORK = "(t := trained()).net."
BLOCK = "ct.dnn.RNNBlock('float32', 3, 1, 'gru')"
DROPPED = "(d := thrown()) and "

# What the selftest has no row for, or calls in a way of its own.
OTHERS = (
    Base("ct.asarray", ("host((2, 3))",)),
    Base("ct.asarray", (IMAGE,), {"dtype": "'float16'", "layout": "'nhwc'"}),
    Base("ct.empty", ("(2, 3)",)),
    Base("ct.zeros", ("(2, 3, 4)",), {"dtype": "'float64'"}),
    Base("ct.full", ("(2, 3, 4)", "7")),
    Base("ct.use", (), {"device": "0"}),
    Base("ct.synchronize"),
    Base("ct.empty_cache"),
    Base("ct.available"),
    Base("ct.last_plan"),
    Base("ct.version"),
    Base("ct.library_info"),
    Base("ct.conv_output_shape", ("(2, 8, 9, 10)", "(8, 8, 3, 3)"), {"padding": "1"}),
    Base("ct.conv_transpose_output_shape", ("(2, 8, 9, 10)", "(8, 8, 3, 3)"), {"stride": "2"}),
    Base("ct.pool_output_shape", ("(2, 8, 9, 10)",), {"window": "2"}),
    Base("ct.conv_algorithms", (IMAGE, FILTERS), {"measure": "False"}),
    Base("ct.conv_plan", (IMAGE, FILTERS), {"padding": "1"}),
    Base(f"ct.conv_plan({IMAGE}, {FILTERS})", (IMAGE, FILTERS)),
    Base("ct.conv_bias_activation_plan", (IMAGE, FILTERS, "array((8,))")),
    Base("ct.export_algo_cache", ("'algo_cache.json'",)),
    Base("ct.import_algo_cache", ("'algo_cache.json'",)),
    Base("ct.batch_norm_overflow_detected"),
    Base("ct.DropoutState", ("0.5", "3")),
    Base("ct.DropoutState().restore", ("ct.DropoutState().save()",)),
    Base("ct.dropout", (IMAGE, "ct.DropoutState()")),
    Base(f"{DROPPED}ct.dropout_backward", (IMAGE, "d.mask", "d.mask.state")),
    Base("ct.RNN", ("'gru'", "2", "3"), {"num_layers": "2"}),
    Base("ct.RNN('lstm', 2, 3).forward", ("array((4, 3, 2))", "array((84,))"), {"lengths": "[4, 2, 3]"}),
    Base("ct.RNN('gru', 2, 3).forward", ("array((4, 3, 2))", "array((63,))"), {"training": "True"}),
    Base(
        "ct.RNN('gru', 2, 3).pack_params",
        ("[np.zeros(one) for one in [(3, 2), (3,)] * 3 + [(3, 3), (3,)] * 3]",),
    ),
    Base(
        "ct.RNN('rnn_relu', 2, 3, bias='no_bias').from_torch",
        ("{'weight_ih_l0': np.zeros((3, 2)), 'weight_hh_l0': np.zeros((3, 3))}",),
    ),
    Base("ct.RNN('gru', 2, 3).split_params", ("array((63,))", "0")),
    Base("ct.RNN('gru', 2, 3).to_torch", ("array((63,))",)),
    Base("ct.RNN('gru', 2, 3).algorithms", ("(4, 3, 2)",), {"measure": "False"}),
    Base(f"{NETWORK}backward_data", ("array((4, 3, 3))", "t.reserve")),
    Base(f"{NETWORK}backward_weights", ("t.with_gradients().reserve",)),
    Base(f"{IMAGE}.copy"),
    Base(f"{IMAGE}.fill", ("3",)),
    Base(f"{IMAGE}.numpy"),
    Base(f"{IMAGE}.close"),
    Base(f"{IMAGE}.packed", ("'nhwc'",)),
    Base(f"{IMAGE}.__dlpack__", (), {"stream": "1"}),
    Base("ct.raw.cudnnGetVersion"),
    Base("ct.raw.cudnnGetErrorString", ("3000",)),
    Base("ct.TensorSpec.packed", ("(2, 3)", "'float32'", "'nchw'")),
    Base("ct.TensorDescriptor", ("ct.TensorSpec.packed((2, 3, 4, 5))",)),
    Base("ct.dnn.dnn_conv", (IMAGE, FILTERS), {"border_mode": "'half'"}),
    Base("ct.dnn.dnn_conv3d", ("array((2, 3, 4, 5, 6))", "array((4, 3, 2, 2, 2))")),
    Base("ct.dnn.dnn_gradweight", (IMAGE, "array((2, 8, 7, 8))", "(8, 8, 3, 3)")),
    Base("ct.dnn.dnn_gradinput", (FILTERS, "array((2, 8, 7, 8))", "(2, 8, 9, 10)")),
    Base("ct.dnn.dnn_pool", (IMAGE, "(2, 2)"), {"stride": "(1, 2)"}),
    Base(
        "ct.dnn.dnn_batch_normalization_train", (IMAGE, *["array((1, 8, 1, 1))"] * 2), {"mode": "'spatial'"}
    ),
    Base("ct.dnn.dnn_batch_normalization_test", (IMAGE, *["array((1, 8, 1, 1))"] * 4), {"mode": "'spatial'"}),
    Base("ct.dnn.dnn_spatialtf", (IMAGE, "array((2, 2, 3))"), {"scale_width": "2"}),
    Base("ct.dnn.GpuDnnConvDesc", ("'valid'",), {"subsample": "(1, 1)"}),
    Base("ct.dnn.GpuDnnPool", ("'max'",)),
    Base("ct.dnn.GpuDnnPool('max')", (IMAGE, "(2, 2)", "(1, 1)", "(0, 0)")),
    Base("ct.dnn.GpuDnnSoftmax", ("'accurate'", "'channel'")),
    Base("ct.dnn.GpuDnnSoftmax('accurate', 'channel')", (IMAGE,)),
    Base("ct.dnn.GpuDnnReduction", ("'add'", "(1,)", "'float32'", "'float32'", "False")),
    Base("ct.dnn.GpuDnnDropoutOp", ("True",)),
    Base("ct.dnn.GpuDnnConv.get_out_shape", ("(2, 8, 9, 10)", "(8, 8, 3, 3)", "'valid'", "(1, 1)")),
    Base("ct.dnn.RNNBlock", ("'float32'", "3", "1", "'gru'")),
    Base(f"{BLOCK}.get_param_size", ("(2, 4)",)),
    Base(f"{BLOCK}.split_params", ("array((81,))", "0", "(2, 4)")),
    Base(f"{BLOCK}.apply", ("array((81,))", "array((5, 2, 4))", "array((1, 2, 3))")),
    Base(f"{BLOCK}.gradients", ("array((81,))", "array((5, 2, 4))", "array((1, 2, 3))")),
    Base("ct.reference.ctc_loss", ("host((4, 2, 3))", "[[1, 2], [1, 1]]", "[2, 1]", "[4, 4]")),
    Base("ct.reference.op_tensor", ("host((2, 3))", "host((1, 3))"), {"alpha1": "2"}),
    *(Base(f"ct.dnn.{name}") for name in ("dnn_available", "dnn_present", "version")),
    *(
        Base("set_config", (repr(name), "None"))
        for name in (
            "algo",
            "workspace_limit",
            "allow_tf32",
            "deterministic",
            "autotune_max_engines",
            "nonsense",
        )
    ),
)

SPECS = tuple(name for name in ct.__all__ if name.endswith("Spec"))
DESCRIPTORS = {name: name.replace("Descriptor", "Spec") for name in ct.__all__ if name.endswith("Descriptor")}


# What a parameter takes, for those that a right call does not give: one of the pools.
USUAL = {
    **dict.fromkeys(("out", "z", "running_mean", "running_var", "h0", "c0", "dhy", "b"), ARRAYS),
    **dict.fromkeys(("padding", "stride", "dilation", "lengths", "strides", "output_padding"), SEQUENCES),
    **dict.fromkeys(("groups", "axis", "workspace_limit", "device", "n", "seed"), INTEGERS),
    **dict.fromkeys(
        ("alpha", "beta", "coefficient", "epsilon", "momentum", "lrn_alpha", "lrn_beta", "k"), FLOATS
    ),
    **dict.fromkeys(("algo", "precision", "mode", "layout", "dtype", "op", "activation"), TEXTS),
}


def line(seed: int, number: int) -> str:
    """One call: mostly a right one with some arguments exchanged, added or left out."""
    rng = random.Random(f"{seed}:{number}")
    base = rng.choice(rng.choice(_families()))
    args, keywords = list(base.args), dict(base.keywords)
    names = _parameters(base.function)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        kind = rng.random()
        if kind < 0.45 and args:
            place = rng.randrange(len(args))
            args[place] = hostile(rng, _pool_of(args[place]))
        elif kind < 0.9 and names:
            name = rng.choice(names)
            if name in names[: len(args)]:  # by position already
                place = names.index(name)
                args[place] = hostile(rng, _pool_of(args[place]))
            else:
                usual = _pool_of(keywords[name]) if name in keywords else USUAL.get(name)
                keywords[name] = hostile(rng, usual) if name != "stream" else rng.choice(STREAMS)
        elif kind < 0.93 and args:
            args.pop()
        elif kind < 0.96:
            args.append(hostile(rng))
        else:
            keywords[rng.choice(("nonsense", "out", "dtype"))] = hostile(rng)
    return str(base._replace(args=tuple(args), keywords=keywords))


def hostile(rng: random.Random, usual: tuple[str, ...] | None = None) -> str:
    """Any value; mostly of the ``usual`` kind, so that it is not refused at the door."""
    if usual and rng.random() < 0.6:
        return rng.choice(usual)
    return rng.choice(rng.choice(POOLS))


def _pool_of(text: str) -> tuple[str, ...]:
    """The pool of values of the kind of an argument."""
    if text.startswith(("array(", "host(", "t.", "d.")):
        return ARRAYS
    if text[0] in "([":
        return SEQUENCES
    return TEXTS if text[0] in "'\"" else INTEGERS if text.lstrip("-").isdigit() else FLOATS


@cache
def _families() -> tuple[tuple[Base, ...], ...]:
    """Bases, in groups that are equally likely."""
    rows: dict[str, list[Base]] = {}
    seen = set()
    for case in cases():
        kept = case.dtype == "float32" or (case.dtype, case.layout) == ("float16", "nhwc")
        if case.operation in ("RNN", "dropout") or not kept:
            continue
        base = _of(case.operation, case.inputs(), case.layout)
        if str(base) not in seen:
            seen.add(str(base))
            rows.setdefault(case.operation, []).append(base)
    ours = [tuple(group) for group in rows.values()]
    theirs = [
        tuple(_on_host(base) for base in group)
        for group in ours
        if hasattr(ct.reference, group[0].function[3:])
    ]
    makers = tuple(Base(f"ct.{name}", _spec_arguments(name)) for name in SPECS)
    natives = tuple(
        Base(f"ct.{name}", (str(Base(f"ct.{spec}", _spec_arguments(spec))),))
        for name, spec in DESCRIPTORS.items()
    )
    # Specs check nothing by themselves: with a descriptor of one, what is hostile in it reaches its rules.
    return (*ours, *([base] for base in OTHERS), *theirs[::3], makers, *[natives] * 8)  # type: ignore[return-value]


def _of(operation: str, inputs: Any, layout: str) -> Base:
    return Base(
        f"ct.{operation}",
        tuple(_text(value, layout) for value in inputs.operands),
        {name: _text(value, layout) for name, value in (inputs.keywords | inputs.device_keywords).items()},
    )


def _text(value: Any, layout: str) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    return f"array({value.shape}, {value.dtype.name!r}, {layout!r})"


def _on_host(base: Base) -> Base:
    def moved(text: str) -> str:
        return f"host({text[6:].rsplit(',', 1)[0]})" if text.startswith("array(") else text

    return Base(
        base.function.replace("ct.", "ct.reference."),
        tuple(map(moved, base.args)),
        {
            name: moved(text)
            for name, text in base.keywords.items()
            if name not in ("algo", "strict", "precision")
        },
    )


def _spec_arguments(name: str) -> tuple[str, ...]:
    """Arguments of a spec that make sense, by its annotations."""
    given = {
        "TensorSpec": ("(2, 3, 4, 5)", "(60, 20, 5, 1)", "'float32'"),
        "FilterSpec": ("(4, 3, 2, 2)", "'float16'"),
        "ConvolutionSpec": ("(1, 1)", "(1, 2)", "(1, 1)"),
        "ActivationSpec": ("'relu'",),
        "PoolingSpec": ("(2, 2)", "(0, 0)", "(1, 1)", "'max'"),
        "OpTensorSpec": ("'add'",),
        "ReduceSpec": ("'add'",),
        "SpatialTransformerSpec": ("(2, 3, 4, 5)", "'float32'"),
    }
    return given.get(name, ())


# Where the text of a function is a call itself, the function whose parameters it has.
_SAME = {
    f"ct.conv_plan({IMAGE}, {FILTERS})": "ConvPlan.__call__",
    f"{DROPPED}ct.dropout_backward": "ct.dropout_backward",
    f"{NETWORK}backward_data": "ct.RNN.backward_data",
    f"{NETWORK}backward_weights": "ct.RNN.backward_weights",
    **{f"ct.RNN({mode!r}, 2, 3).forward": "ct.RNN.forward" for mode in ("lstm", "gru")},
    **{f"{IMAGE}.{name}": f"ct.DeviceArray.{name}" for name in ("copy", "fill", "packed", "__dlpack__")},
}


@cache
def _parameters(function: str) -> tuple[str, ...]:
    """The names of a function's parameters, those that may be given by position first."""
    try:
        found = inspect.signature(eval(_SAME.get(function, function), NAMES | {"ConvPlan": ConvPlan}))
    except (TypeError, ValueError, ct.CudnnError):  # of a builtin, or of something that needs a device
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ours = ("self", "stacklevel")  # the latter is not for callers
    return tuple(name for name, one in found.parameters.items() if one.kind not in kinds and name not in ours)
