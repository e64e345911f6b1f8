"""The rows of the table of operations as functions of JAX, with gradients and rules of vmap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.sharding import NamedSharding, PartitionSpec

from ..dtypes import DTYPES
from ..gradients.formulas import Backward, Row, needs_of, saved_names
from ..gradients.table import OPERATIONS
from .calls import ROWS, Params, call_of, order_of, plain, traced_settings
from .ffi import COMMAND_BUFFERS, register
from .kernels import NOTHING, code_of, learned, on_cpu, on_gpu

__all__ = [
    "Operators", "apply", "apply_whole", "entering", "known", "known_params", "operand", "ops", "raw_call",
    "without_gradient",
]  # fmt: skip

# One handler for all operations. XLA captures the calls of the first target in command buffers.
CAPTURED, NOT_CAPTURED = "cudnn_ct", "cudnn_ct_not_captured"

for _target, _traits in ((CAPTURED, COMMAND_BUFFERS), (NOT_CAPTURED, 0)):
    register(_target, "cpu", on_cpu, code_of, 0)
    register(_target, "CUDA", on_gpu, code_of, _traits)

# Operations on rows, for which an axis in front is more rows if only these operands have it.
MANY_ROWS = {
    "softmax": ("x",),
    "softmax_backward": ("dy", "y"),
    **{f"{name}{end}": ("x",) for name in ("layer_norm", "rms_norm") for end in ("", "_inference")},
}

# Operations with an operand that may have one sample for all samples of the others.
SHARED = {"attention": "bias", "attention_inference": "bias", "attention_backward": "bias"}


def apply(name: str, operands: Sequence[Any], **params: Any) -> Any:
    """Call an operation: its result, the first one if it has a gradient, or a tuple of all results."""
    results = apply_whole(name, operands, whole=False, **params)
    return results[0] if len(results) == 1 else results


def apply_whole(name: str, operands: Sequence[Any], *, whole: bool = True, **params: Any) -> tuple[Any, ...]:
    """Call an operation, and return all results."""
    row = OPERATIONS[name]
    values = known_params(row, params)
    return _differentiable(name, (*values, traced_settings()), whole)(*entering(row, operands))


class Operators:
    """The operations that gradients call, by the names of their rows."""

    broadcast_to = staticmethod(jnp.broadcast_to)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(name)
        return lambda *operands, **params: apply(name, operands, **params)

    @staticmethod
    def gelu_backward(dy: Any, x: Any, approximate: str) -> Any:
        """Return the gradient of gelu, which XLA computes."""
        _, pull = jax.vjp(partial(jax.nn.gelu, approximate=approximate == "tanh"), x)
        return pull(dy)[0]


ops = Operators()


# --- gradients ---------------------------------------------------------------------------------------------


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Facts:
    """The parameters of a gradient that are not arrays."""

    wanted: frozenset[str]
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]


@lru_cache(4096)
def _differentiable(name: str, params: Params, whole: bool) -> Callable[..., tuple[Any, ...]]:
    """Return the function of an operation's operands, None for those that are not given.

    It returns the first result, or all results, of which only the first has a gradient.
    """
    row = OPERATIONS[name]
    if row.gradient is None:
        return without_gradient(name, params)
    seen = len(row.results) if whole else 1
    primal = f"{name}_inference" if not whole and f"{name}_inference" in OPERATIONS else name

    @jax.custom_vjp
    def function(*operands: Any) -> tuple[Any, ...]:
        return raw_call(primal, params, operands)[:seen]

    def forward(*traced: Any) -> tuple[tuple[Any, ...], Any]:
        operands = tuple(None if one is None else one.value for one in traced)
        present = dict(zip(row.operands, operands, strict=True))
        needs = needs_of(row, dict(params))
        perturbed = dict(zip(row.operands, traced, strict=True))
        wanted = frozenset(one for one in needs if perturbed[one] is not None and perturbed[one].perturbed)
        # For a second derivative JAX differentiates this function.
        every = seen == len(row.results)
        results = (function if every else _differentiable(name, params, True))(*operands)
        known = present | dict(zip(row.results, results, strict=True))
        saved = {one: known[one] for one in saved_names(row, dict(params), wanted)}
        return results[:seen], (saved, _Facts(wanted, _described(row, operands)))

    def backward(residuals: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, facts = residuals
        dy, *others = cotangents
        if not all(isinstance(one, SymbolicZero) for one in others):
            raise NotImplementedError(f"the second derivative of {name} is not supported")
        if isinstance(dy, SymbolicZero) or not facts.wanted:
            return (None,) * len(row.operands)
        arrays = {**dict.fromkeys(row.operands), **saved, f"d{row.results[0]}": dy}
        shapes = {one: shape for one, shape, _ in facts.arrays}
        assert row.gradient is not None
        found = row.gradient(ops, Backward(arrays, shapes, dict(params), facts.wanted))
        dtypes = {one: dtype for one, _, dtype in facts.arrays}
        return tuple(
            found[one].reshape(shapes[one]).astype(dtypes[one]) if one in facts.wanted else None
            for one in row.operands
        )

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def without_gradient(name: str, params: Params) -> Callable[..., tuple[Any, ...]]:
    """Return the function of an operation's operands, whose derivative is an error if it is used."""

    @jax.custom_vjp
    def function(*operands: Any) -> tuple[Any, ...]:
        return raw_call(name, params, operands)

    def forward(*operands: Any) -> tuple[Any, None]:
        return function(*operands), None

    def backward(residuals: None, cotangents: Any) -> Any:
        raise NotImplementedError(f"the derivative of {name} is not supported")

    function.defvjp(forward, backward)
    return function


def _described(row: Row, operands: Sequence[Any]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    pairs = zip(row.operands, operands, strict=True)
    return tuple((one, tuple(array.shape), array.dtype.name) for one, array in pairs if array is not None)


# --- vmap --------------------------------------------------------------------------------------------------


def raw_call(name: str, params: Params, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Call an operation without a gradient, on the operands that are given."""
    row = ROWS[name]
    present = tuple(one for one, array in zip(row.operands, operands, strict=True) if array is not None)
    given = [jnp.asarray(array) for array in operands if array is not None]
    return tuple(varying_alike(_batchable(name, params, present)(*given), given))


@lru_cache(4096)
def _batchable(name: str, params: Params, present: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return the function of the given operands with a rule of vmap."""
    row = ROWS[name]

    def one_call(*given: Any) -> tuple[Any, ...]:
        return _ffi(name, params, present, given)

    function = custom_vmap(one_call)

    @function.def_vmap
    def rule(size: int, batched: Sequence[bool], *split: Any) -> tuple[Any, Any]:
        mapped = {one for one, is_mapped in zip(present, batched, strict=True) if is_mapped}
        given = dict(zip(present, map(_gathered, split), strict=True))
        if mapped == set(MANY_ROWS.get(name, ())):
            results = _batchable(name, _negative_axes(params, given), present)(*given.values())
        elif (folded := _folded(name, params, size, mapped, given)) is not None:
            results = folded
        else:
            results = _looped(function, tuple(batched), *given.values())
        first = split[list(batched).index(True)]
        return tuple(_split_as(array, first) for array in results), (True,) * len(row.results)

    return function


def _folded(
    name: str, params: Params, size: int, mapped: set[str], given: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Return the results of one call for all samples; None if the operation has no axis for them."""
    row, arrays, batch = ROWS[name], dict(given), dict(ROWS[name].batch)
    shared = SHARED.get(name, "")
    if shared in given and (shared in mapped or given[shared].shape[0] > 1):
        shape = list(given[shared].shape)
        shape[shared in mapped] = given["q"].shape["q" in mapped]
        arrays[shared], batch[shared] = jnp.broadcast_to(given[shared], shape), 0
    if not (set(row.results) <= set(batch) and mapped <= set(batch) and size):
        return None
    folded = [
        _fold(array if one in mapped else jnp.broadcast_to(array, (size, *array.shape)), batch[one])
        if one in batch
        else array
        for one, array in arrays.items()
    ]
    results = _batchable(name, _with_samples(params, row, size), tuple(given))(*folded)
    pairs = zip(row.results, results, strict=True)
    return tuple(_unfold(array, size, batch[one]) for one, array in pairs)


@partial(jax.jit, static_argnums=(0, 1), inline=True)
def _looped(function: Callable[..., Any], batched: tuple[bool, ...], *given: Any) -> Any:
    """Call a function for each sample; JAX would compile a loop again in each call outside of ``jit``."""

    def one_sample(rows: Sequence[Any]) -> Any:
        left = iter(rows)
        return function(*[next(left) if mapped else one for one, mapped in zip(given, batched, strict=True)])

    return jax.lax.map(one_sample, [one for one, mapped in zip(given, batched, strict=True) if mapped])


def _negative_axes(params: Params, given: Mapping[str, Any]) -> Params:
    """Return parameters whose axes count from the last, so that an axis in front does not change them."""
    rank = next(iter(given.values())).ndim - 1
    return tuple(
        (one, tuple(axis - rank if axis >= 0 else axis for axis in value)) if one == "axis" else (one, value)
        for one, value in params
    )


def _with_samples(params: Params, row: Row, size: int) -> Params:
    """Return parameters for so many times the samples: shapes begin with their number."""
    shapes = {one for one, param in row.params.items() if param.kind == "shape"}
    return tuple(
        (one, (value[0] * size, *value[1:])) if one in shapes else (one, value) for one, value in params
    )


def _fold(array: Any, axis: int) -> Any:
    moved = jnp.moveaxis(array, 0, axis)
    count = moved.shape[axis] * moved.shape[axis + 1]
    return moved.reshape(*moved.shape[:axis], count, *moved.shape[axis + 2 :])


def _unfold(array: Any, size: int, axis: int) -> Any:
    count = array.shape[axis] // size
    split = array.reshape(*array.shape[:axis], size, count, *array.shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0)


# --- XLA ---------------------------------------------------------------------------------------------------


def _ffi(name: str, params: Params, present: tuple[str, ...], given: Sequence[Any]) -> tuple[Any, ...]:
    """Call the handler, with the workspace that the operation needs on a GPU as one more result."""
    arrays = tuple(
        (one, tuple(array.shape), array.dtype.name) for one, array in zip(present, given, strict=True)
    )
    for one, shape, _ in arrays:
        if not all(isinstance(length, int) for length in shape):
            raise TypeError(f"{one} has a symbolic shape: got {shape}, expected ints; trace each shape apart")
    call = call_of(name, params, arrays)
    text = call.text()
    needs = learned(text) if _has_gpu() else NOTHING
    results = [jax.ShapeDtypeStruct(spec.shape, DTYPES[spec.dtype].numpy) for spec in call.results]
    orders = [order_of(spec) for spec in call.results]
    if needs.workspace:
        results.append(jax.ShapeDtypeStruct((needs.workspace,), jnp.uint8))
        orders.append(None)
    function = jax.ffi.ffi_call(
        CAPTURED if needs.capturable else NOT_CAPTURED,
        results,
        input_layouts=[order_of(spec) for spec in call.operands],
        output_layouts=orders,
    )
    return tuple(function(*given, call=text)[: len(call.results)])


def varying_alike(arrays: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
    """Return arrays that vary over all axes of ``shard_map`` over which one of them, or of ``others``, does.

    A weight that all devices share becomes one for each, so that its gradient is summed over the devices.
    """
    present = [array for array in (*arrays, *others) if array is not None]
    axes = frozenset[str]().union(*map(_axes_of, present))
    return [
        array if array is None or axes <= _axes_of(array) else _to_varying(array, axes - _axes_of(array))
        for array in arrays
    ]


def _axes_of(array: Any) -> frozenset[str]:
    kind = jax.typeof(array)
    axes = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return getattr(kind, "vma", frozenset()) if axes is None else axes  # the name in older versions


def _to_varying(array: Any, axes: frozenset[str]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))


def _has_gpu() -> bool:
    """Return whether this process computes on a GPU by default."""
    return bool(jax.default_backend() == "gpu")


# --- arguments ---------------------------------------------------------------------------------------------


def known_params(row: Row, params: Mapping[str, Any]) -> Params:
    """Return the parameters of a row as values of Python."""
    given = {one: params.get(one, param.default) for one, param in row.params.items()}
    return tuple((one, plain(row.params[one], known(value, one), one)) for one, value in given.items())


def known(value: Any, name: str) -> Any:
    """Return a parameter without arrays of JAX; raise TypeError if it has traced ones."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced: got {value}, expected a value that is known when JAX traces; "
            "add it to static_argnames of jax.jit, or bind it with functools.partial"
        )
    if isinstance(value, list | tuple):
        return tuple(known(one, name) for one in value)
    return np.asarray(value) if isinstance(value, jax.Array) else value


def entering(row: Row, operands: Sequence[Any]) -> list[Any]:
    """Return all operands of a row, as the call takes them."""
    given = (*operands, *(None,) * (len(row.operands) - len(operands)))
    return varying_alike([None if array is None else _gathered(array) for array in given])


def _gathered(array: Any) -> Any:
    """Return an array that is not split over explicit axes of a mesh: a call of a handler needs all of it."""
    sharding = jax.typeof(array).sharding
    return array if not any(sharding.spec) else _resharded(array, sharding.mesh)


def _split_as(array: Any, other: Any) -> Any:
    """Return an array whose first axis is split over the same explicit axes of a mesh as another's."""
    sharding = jax.typeof(other).sharding
    return _resharded(array, sharding.mesh, sharding.spec[0]) if any(sharding.spec[:1]) else array


def _resharded(array: Any, mesh: Any, *first: Any) -> Any:
    axes = (*first, *(None,) * (array.ndim - len(first)))
    return jax.sharding.reshard(array, NamedSharding(mesh, PartitionSpec(*axes)))


def operand(array: Any, name: str, *, optional: bool = False) -> Any:
    """Return an operand as an array of JAX; raise TypeError if JAX would convert float64 to float32."""
    if array is None and optional:
        return None
    if isinstance(array, np.ndarray) and array.dtype == np.float64 and not jax.config.read("jax_enable_x64"):
        raise TypeError(
            f"{name} is float64, which JAX converts to float32: set jax_enable_x64, or pass "
            f"{name}.astype('float32')"
        )
    if array is None or isinstance(array, jax.ShapeDtypeStruct | dict | str):
        raise TypeError(
            f"{name} is not an array: got {type(array).__name__}, expected an array of JAX or NumPy"
        )
    return jnp.asarray(array)
