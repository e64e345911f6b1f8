"""Bodies of the operators: results in memory of torch, filled by the functions of the package."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

import cudnn_ct

from .._caches import BoundedDict
from ..array_shapes import ShapeArray, only_shapes, spec_of
from ..gradients.formulas import Row, arguments
from ..gradients.table import NETWORKS, OPERATIONS, body, network_results
from ..shapes.specs import TensorSpec
from .prepared import Call
from .symbolic import Meta, results_of_sizes

__all__ = [
    "FINDERS",
    "KERNELS",
    "ROWS",
    "choices",
    "fake_results",
    "filled",
    "on_cpu",
    "options_of",
    "refuse_tangents",
    "settings",
    "traced",
    "watched",
]

ROWS: dict[str, Row] = {**OPERATIONS, **NETWORKS}

MAX_CALLS = 4096  # prepared calls of an operator

# Settings of torch, by the functions behind them: the attributes of `torch.backends` take ten times as long.
_tf32_of_cudnn = torch._C._get_cudnn_allow_tf32
_tf32_of_products = torch._C._get_cublas_allow_tf32
_cudnn_deterministic = torch._C._get_cudnn_deterministic
_benchmark = torch._C._get_cudnn_benchmark
_deterministic = torch.are_deterministic_algorithms_enabled


def choices() -> tuple[bool, bool, bool]:
    """Return the settings of torch that decide which algorithms may run."""
    return _cudnn_deterministic(), _deterministic(), _benchmark()


def settings() -> tuple[bool, ...]:
    """Return the settings of torch that decide how operators compute."""
    try:
        return _tf32_of_cudnn(), _tf32_of_products(), *choices()
    except RuntimeError:
        return *map(_is_tf32, ("conv", "rnn", "matmul")), *choices()


def _is_tf32(operation: str) -> bool:
    """Return whether an operation may use TF32 if settings of operations differ, for which others raise."""
    precision: str = torch._C._get_fp32_precision_getter("cuda", operation)
    return precision == "tf32"


class _Watched(threading.local):
    """Calls of operators of a thread while it watches them: each with its operands and first result.

    The result is None if the call does more than compute it.
    """

    calls: list[tuple[Call, tuple[Any, ...], Any]] | None = None


watched = _Watched()
traced: set[str] = set()  # operators that were called without memory, as torch.compile does

# Operators whose sums are in an undefined order, and for which cuDNN has no alternative.
_VARYING = ("grid_sample_backward", "affine_grid_backward")


def filled(row: Row, given: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the operands and parameters of a call, with the defaults of those that the dispatcher omits."""
    count = len(row.operands)
    tensors, params = tuple(given[:count]), tuple(given[count:])
    if len(params) < len(row.params):
        defaults = [param.default for param in row.params.values()]
        tensors += (None,) * (count - len(tensors))
        params += tuple(defaults[len(params) :])
    if list in map(type, params):
        params = tuple(tuple(one) if isinstance(one, list) else one for one in params)
    return tensors, params


def options_of(name: str) -> Callable[[], tuple[bool, ...]]:
    """Return a function that returns the settings of torch that decide how an operator computes."""
    product = name.startswith("matmul")
    tf32 = _tf32_of_products if product else _tf32_of_cudnn
    operation = "matmul" if product else "rnn" if name in NETWORKS else "conv"

    def options() -> tuple[bool, ...]:
        try:
            return tf32(), _cudnn_deterministic(), _deterministic(), _benchmark()
        except RuntimeError:
            return _is_tf32(operation), *choices()

    return options


def _finder(name: str, row: Row) -> Callable[[Sequence[Any]], Call]:
    """Return a function that returns the prepared call of operands and parameters."""
    count, options, calls = len(row.operands), options_of(name), BoundedDict(MAX_CALLS)

    def find(given: Sequence[Any]) -> Call:
        chosen = options()
        key: list[Any] = [chosen]
        for tensor in given[:count]:
            if tensor is None:
                key.append(None)
            else:
                key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        facts = (*key, *given[count:])
        try:
            call = calls.get(facts)
        except TypeError:  # the dispatcher passes lists
            facts = (*key, *[tuple(one) if type(one) is list else one for one in given[count:]])
            call = calls.get(facts)
        if call is None:
            call = calls[facts] = _prepared(name, row, given, chosen[0])
        return call

    return find


def _kernel(name: str, row: Row) -> Callable[..., Any]:
    """Return the body of an operator on CUDA tensors."""
    count, updated = len(row.operands), tuple(row.operands.index(one) for one in row.updated)
    single, find = len(row.results) == 1, FINDERS[name]

    def run(*given: Any) -> Any:
        tensors = given[:count]
        if forward_ad._current_level >= 0:
            refuse_tangents(name, tensors)
        call = find(given)
        if call.varies:
            _alert(name)
        outs = call.run(tensors)
        for place in updated:
            if place < len(tensors) and tensors[place] is not None:
                torch.autograd.graph.increment_version(tensors[place])
        if watched.calls is not None:
            watched.calls.append((call, tensors, None if updated or call.varies else outs[0]))
        return outs[0] if single else tuple(outs)

    return run


def _prepared(name: str, row: Row, given: Sequence[Any], tf32: bool) -> Call:
    """Check the operands of a call, and return all that follows from their shapes and the settings."""
    tensors, params = filled(row, given)
    present = {one: tensor for one, tensor in zip(row.operands, tensors, strict=True) if tensor is not None}
    device, absent = _common_device(name, present), len(row.operands) - len(present)
    _check_numbers(name, params)
    metas = _metas(tensors)
    results = tuple(_results(name, row, metas, params))
    if name in NETWORKS:
        x, values = _spec(metas[0]), dict(zip(row.params, params, strict=True))
        precision = "float32" if not tf32 and tensors[0].dtype is torch.float32 else None
        network = body(cudnn_ct.RNN, name, x, values, precision)
        return Call(network, row.operands, results, device, known=False, absent=absent)
    function = _ctc_loss if name == "ctc_loss" else getattr(cudnn_ct, row.function)
    keywords = _keywords(row, params, {}, tensors[0].dim())
    known = _parameters(row.function)
    same = _cudnn_deterministic() or _deterministic()
    if same and "deterministic" in known:
        keywords["deterministic"] = True
    if same and keywords.get("mode") == "max":
        keywords["mode"] = "max_deterministic"
    if not tf32 and "precision" in known and tensors[0].dtype is torch.float32:
        keywords["precision"] = "float32"
    if _benchmark() and not same and row.function.startswith("conv") and "algo" in known:
        keywords["algo"] = "autotune"
    varies = _deterministic() and name in _VARYING
    facts: dict[str, Any] = {"varies": varies, "known": name != "ctc_loss", "absent": absent}
    return Call(partial(function, **keywords), row.operands, results, device, **facts)


def _check_numbers(name: str, params: Sequence[Any]) -> None:
    """Raise for tensors as parameters, whose values a prepared call would not follow."""
    for one in params:
        if any(isinstance(number, torch.Tensor) for number in (one if isinstance(one, tuple) else (one,))):
            raise TypeError(
                f"parameters of cudnn_ct::{name} must be numbers: got a tensor; pass tensor.item()"
            )


def refuse_tangents(name: str, tensors: Sequence[Any]) -> None:
    """Raise if an operand has a tangent, which the result would lose."""
    if any(
        one is not None and forward_ad.unpack_dual(_sample_of(one)).tangent is not None for one in tensors
    ):
        raise NotImplementedError(
            f"cudnn_ct::{name} has no forward-mode derivative: use torch.autograd.grad, or PyTorch's operator"
        )


def _sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without the levels of torch.vmap, which has no rule for tangents."""
    while not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@cache
def _parameters(function: str) -> frozenset[str]:
    """Return the names of the parameters of a public function."""
    return frozenset(inspect.signature(getattr(cudnn_ct, function)).parameters)


def _common_device(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """Return the device of all operands; raise if there are several."""
    (first, x), *others = tensors.items()
    for other, tensor in others:
        if tensor.device != x.device and (name, other) not in _HOST_OPERANDS:
            raise ValueError(
                f"{other} is on {tensor.device}, but {first} is on {x.device}; move it with "
                f"{other}.to({first}.device)"
            )
    return x.device


_HOST_OPERANDS = {("ctc_loss", name) for name in ("labels", "label_lengths", "input_lengths")}


def _ctc_loss(**operands: Any) -> Any:
    """Call the function with NumPy arrays of labels and lengths in host memory."""
    host = {
        name: one.numpy() if isinstance(one, torch.Tensor) and one.is_cpu and name != "logits" else one
        for name, one in operands.items()
    }
    return cudnn_ct.ctc_loss(**host)


def _alert(name: str) -> None:
    """Raise or warn, as torch does for its own operators without a deterministic algorithm."""
    message = (
        f"cudnn_ct::{name} does not have a deterministic implementation, but "
        "torch.use_deterministic_algorithms(True) is set"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}; pass warn_only=True, or use another operator")
    warnings.warn(message, UserWarning, stacklevel=3)


# --- shapes of results -------------------------------------------------------------------------------------


def fake_results(name: str, given: Sequence[Any]) -> Any:
    """Return results without memory for operands without memory, whose sizes may be symbolic."""
    traced.add(name)
    row = ROWS[name]
    tensors, params = filled(row, given)

    def rule(metas: tuple[Meta | None, ...], params: tuple[Any, ...]) -> Sequence[Meta]:
        return _results(name, row, metas, params)

    found = results_of_sizes(rule, _metas(tensors), params)
    made = [tensors[0].new_empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in found]
    return made[0] if len(made) == 1 else tuple(made)


def _results(name: str, row: Row, metas: tuple[Meta | None, ...], params: tuple[Any, ...]) -> Sequence[Meta]:
    """Return the results of a call."""
    if name == "ctc_loss":  # its function reads labels
        logits = metas[0]
        assert logits is not None
        return _packed(logits.shape[1:2], logits.dtype), _packed(logits.shape, logits.dtype)
    dtypes = {str(meta.dtype).removeprefix("torch."): meta.dtype for meta in metas if meta is not None}
    specs = {one: _spec(meta, one) for one, meta in zip(row.operands, metas, strict=True) if meta is not None}
    if name in NETWORKS:
        made = network_results(name, dict(zip(row.params, params, strict=True)), specs)
    else:
        made = _specs_of_function(row, specs, params)
    return [Meta(one.shape, one.strides, dtypes.get(one.dtype) or getattr(torch, one.dtype)) for one in made]


def _specs_of_function(
    row: Row, specs: Mapping[str, TensorSpec], params: tuple[Any, ...]
) -> tuple[TensorSpec, ...]:
    """Return the results of the package's function on arrays without memory."""
    first = specs[row.operands[0]]
    operands = {one: ShapeArray.of(specs[one]) if one in specs else None for one in row.operands}
    keywords = _keywords(row, params, operands, len(first.shape))
    if first.dtype == "float32" and "precision" in _parameters(row.function):
        keywords["precision"] = "tf32"  # the default depends on the cuDNN that is loaded; shapes do not
    with only_shapes(record=False):
        found = getattr(cudnn_ct, row.function)(**keywords)
    arrays = [getattr(found, result) for result in row.results] if isinstance(found, tuple) else [found]
    return tuple(one.spec for one in arrays)


class _Described(NamedTuple):
    """A tensor as `spec_of` reads it."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        return self.steps


def _spec(meta: Meta | None, name: str = "x") -> TensorSpec:
    assert meta is not None
    return spec_of(_Described(*meta), name)


def _keywords(row: Row, params: tuple[Any, ...], operands: dict[str, Any], rank: int) -> dict[str, Any]:
    return arguments(row, dict(zip(row.params, params, strict=True)), operands, rank - 2)


def _metas(tensors: tuple[Any, ...]) -> tuple[Meta | None, ...]:
    return tuple(
        None if one is None else Meta(tuple(one.shape), tuple(one.stride()), one.dtype) for one in tensors
    )


def _packed(shape: tuple[int, ...], dtype: torch.dtype) -> Meta:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return Meta(shape, tuple(reversed(steps)), dtype)


# --- devices without kernels -------------------------------------------------------------------------------


def on_cpu(name: str) -> Callable[..., Any]:
    """Return the body of an operator on tensors in host memory, which raises."""
    names = ROWS[name].operands

    def run(*given: Any) -> Any:
        tensors = zip(names, given, strict=False)
        host = [one for one, tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_cpu]
        raise ValueError(
            f"cudnn_ct::{name} needs CUDA tensors: {', '.join(host)} on the CPU; move them with .cuda()"
        )

    return run


FINDERS = {name: _finder(name, row) for name, row in ROWS.items()}
KERNELS: dict[str, Callable[..., Any]] = {name: _kernel(name, row) for name, row in ROWS.items()}
