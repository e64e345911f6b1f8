"""``ct.capture``: functions whose calls are recorded as CUDA graphs and replayed."""

from __future__ import annotations

import inspect
import linecache
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload
from weakref import WeakValueDictionary

from .._config import config
from ..array import DeviceArray
from ..array_creation import as_operand, asarray
from ..cuda import foreign, interop
from ..cuda import stream as streams
from ..errors import PACKAGES, warn_caller
from ..ops._operands import stream_of
from ..shapes.checks import as_choice, as_int
from .record import Record, as_array_of, can_launch, copy_of, record
from .trees import convert, flatten, library_of, rebuild

P = ParamSpec("P")
R = TypeVar("R")

# Packages whose frames are skipped where a warning names the call that could not be recorded.
_LIBRARIES = ("contextlib", *PACKAGES, *(library.module for library in foreign.LIBRARIES))


class _Graphs:
    """The graphs of one thread by signature, the last used one last; None for calls without a graph."""

    __slots__ = ("__weakref__", "by_signature")

    def __init__(self) -> None:
        self.by_signature: OrderedDict[Any, Record | None] = OrderedDict()


class CapturedFunction(Generic[P, R]):
    """A function whose calls are replayed as CUDA graphs; :func:`capture` returns it.

    Any thread may call it. Each thread has graphs of its own.
    """

    def __init__(self, function: Callable[P, R], operands: str = "copy", max_signatures: int = 8) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable: got {type(function).__name__}")
        self._by_pointer = as_choice(operands, ("copy", "pointer"), "operands") == "pointer"
        self._limit = as_int(max_signatures, "max_signatures")
        if self._limit < 1:
            raise ValueError(f"max_signatures must be positive: got {max_signatures}")
        update_wrapper(self, function)  # first, because it copies the attributes of the function
        self._function = function
        self._name: str = getattr(function, "__qualname__", type(function).__qualname__)
        self._closed = False
        self._thread = threading.local()
        self._threads: WeakValueDictionary[int, _Graphs] = WeakValueDictionary()

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]:
        """Bind a captured method to its object, which becomes a part of the signature."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Replay the graph of the operands, or call the function and record it for the next call."""
        if not kwargs:
            try:
                graphs, key = self._thread.graphs.by_signature, self._key(args)
                found = graphs[key]
                graphs.move_to_end(key)
            except (AttributeError, LookupError, TypeError):  # another array, or a new signature
                found = None
            if found is not None:
                return self._replay(found, args, args, kwargs)
        return self._prepare(args, kwargs)

    def close(self) -> None:
        """Destroy the graphs and free their memory, after pending launches. Later calls raise ValueError.

        The memory of results that are still in use stays until they are dropped.
        """
        self._closed = True
        for graphs in self._of_threads():
            graphs.clear()

    def describe(self) -> str:
        """Return the number of graphs, and the nodes and the bytes of each one.

        The bytes are those of operands and of arrays of this package; PyTorch and CuPy count their own.
        """
        rows = [f"{one.graph.nodes} nodes, {one.memory.owned.nbytes:,} bytes" for one in self._records()]
        eager = sum(_values(graphs).count(None) for graphs in self._of_threads())
        rows += [f"signatures without a graph: {eager}"] if eager else []
        return "\n  ".join([f"{self._name}, graphs: {len(self._records())}", *rows])

    def __repr__(self) -> str:
        records = self._records()
        nodes = sum(one.graph.nodes for one in records)
        nbytes = sum(one.memory.owned.nbytes for one in records)
        state = "closed" if self._closed else f"graphs {len(records)}, nodes {nodes}, bytes {nbytes:,}"
        return f"<CapturedFunction {self._name}: {state}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a CapturedFunction has CUDA graphs and cannot be copied or pickled")

    def _records(self) -> list[Record]:
        found = [one for graphs in self._of_threads() for one in _values(graphs)]
        return [one for one in found if one is not None]

    def _of_threads(self) -> list[OrderedDict[Any, Record | None]]:
        found = [one() for one in self._threads.valuerefs()]  # another thread may add its own meanwhile
        return [one.by_signature for one in found if one is not None]

    def _key(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the signature of arrays of this package: without arrays, the device that is in use."""
        if not arrays:
            return config.snapshot, streams.current_stream().device
        if self._by_pointer:
            return config.snapshot, *[(array.key, array.pointer) for array in arrays]
        return config.snapshot, *[array.key for array in arrays]

    def _replay(
        self,
        found: Record,
        arrays: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stream: streams.Stream | None = None,
    ) -> R:
        """Launch a graph, or call the function while a graph that contains the call is captured."""
        stream = stream or streams.current_stream(found.device)
        if stream.device != found.device:
            raise ValueError(f"stream is on another device: got {stream.device}, expected {found.device}")
        previous = streams.set_device(found.device)
        if found.busy or not can_launch(stream):
            streams.restore_device(previous)
            return self._eager(args, kwargs)
        found.busy = True
        try:
            results: R = found.launch(arrays, stream)
            return results
        finally:
            found.busy = False
            if previous is not None:
                streams.restore_device(previous)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Import operands of other libraries, and replay their graph; record a new signature."""
        if self._closed:
            raise ValueError(f"{self!r} cannot be called")
        leaves: list[Any] = []
        template = self._template(args, kwargs, leaves)
        stream = stream_of(leaves[0], "an operand", None, leaves) if leaves else streams.current_stream()
        if not can_launch(stream):
            return self._eager(args, kwargs)
        with streams.on_device(stream.device):
            arrays = [as_operand(leaf, "an operand", stream) for leaf in leaves]
            key = self._key(arrays)
            if kwargs or any(type(value) is not DeviceArray for value in args):
                key = (template, key)
            graphs = self._graphs()
            if key not in graphs:
                return self._first(graphs, key, template, leaves, arrays, args, kwargs)
            try:
                graphs.move_to_end(key)
                found = graphs[key]
            except KeyError:  # another thread has closed this
                raise ValueError(f"{self!r} cannot be called") from None
        if found is None:
            return self._eager(args, kwargs)
        return self._replay(found, arrays, args, kwargs, stream)

    def _first(
        self,
        graphs: OrderedDict[Any, Record | None],
        key: Any,
        template: Any,
        leaves: list[Any],
        arrays: list[DeviceArray],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> R:
        """Call the function, which selects algorithms and allocates, then record it; return the results."""
        results, failure = self._eager(args, kwargs), ""
        device = arrays[0].device if arrays else streams.current_stream().device
        try:
            graphs[key] = record(
                self._function, template, leaves, arrays, device, copied=not self._by_pointer
            )
        except Exception as error:
            graphs[key], failure = None, _describe_failure(error)
            error.__traceback__ = error.__context__ = error.__cause__ = None  # its frames keep arrays alive
        with suppress(KeyError):  # another thread has closed this between the two calls
            while len(graphs) > self._limit:
                graphs.popitem(last=False)
        if self._closed:  # meanwhile, by another thread
            graphs.clear()
        if failure:
            warn_caller(f"{self._name} runs without a CUDA graph for these operands: {failure}")
        return results

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Call the function; it gets copies and returns arrays of this package, as in a replay."""
        if not self._by_pointer:
            args, kwargs = self._with_copies(args, kwargs)
        results: R = convert(self._function(*args, **kwargs), asarray)
        return results

    def _with_copies(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments with copies of their arrays, which the function may write to."""
        leaves: list[Any] = []
        template = self._template(args, kwargs, leaves)
        if not leaves:
            return args, kwargs
        stream = stream_of(leaves[0], "an operand", None, leaves)
        with streams.on_device(stream.device):
            arrays = [as_operand(leaf, "an operand", stream) for leaf in leaves]
            copies = [copy_of(array, stream) for array in arrays]
            given = [as_array_of(library_of(leaf), copy) for leaf, copy in zip(leaves, copies, strict=True)]
        return rebuild(template, iter(given))

    def _graphs(self) -> OrderedDict[Any, Record | None]:
        if not hasattr(self._thread, "graphs"):
            self._thread.graphs = _Graphs()
            self._threads[id(self._thread.graphs)] = self._thread.graphs
        graphs: OrderedDict[Any, Record | None] = self._thread.graphs.by_signature
        return graphs

    def _template(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        """Return the hashable template of the arguments; append their arrays to ``leaves``."""
        ordered = {name: kwargs[name] for name in sorted(kwargs)}
        try:
            return flatten((args, ordered), leaves, _check_argument)
        except TypeError:
            for name, value in (*_named(self._function, args), *ordered.items()):
                try:
                    flatten(value, [], _check_argument)
                except TypeError:
                    raise TypeError(
                        f"{name} must be an array on the device, or hashable: got "
                        f"{interop.type_name(value)}; ct.asarray copies numbers to the device"
                    ) from None
            raise


def _values(graphs: OrderedDict[Any, Record | None]) -> list[Record | None]:
    """Return the graphs of a thread, which may change them meanwhile.

    The iterator of an OrderedDict would look up each key, and raise KeyError for one that is gone.
    """
    return list(dict.values(graphs))


def _check_argument(value: Any) -> None:
    """Raise TypeError for an argument that cannot be part of a signature."""
    hash(value)
    if hasattr(value, "__dlpack__"):  # a tensor in host memory is hashed by its identity
        raise TypeError


def _named(function: Callable[..., Any], args: tuple[Any, ...]) -> list[tuple[str, Any]]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function of C
        names = []
    names += [f"argument {place}" for place in range(len(names), len(args))]
    return list(zip(names, args, strict=False))


def _describe_failure(error: Exception) -> str:
    """Return the call of the function that could not be recorded, and its error."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES
    ]
    text = " ".join(str(error).split())
    if not frames:
        return f"{type(error).__name__}: {text}"
    file, line = frames[-1]
    source = linecache.getline(file, line).strip() or "a call"
    return f"{source} ({file}:{line}) raised {type(error).__name__}: {text}"


@overload
def capture(
    function: Callable[P, R], *, operands: Literal["copy", "pointer"] = "copy", max_signatures: int = 8
) -> CapturedFunction[P, R]: ...


@overload
def capture(
    function: None = None, *, operands: Literal["copy", "pointer"] = "copy", max_signatures: int = 8
) -> Callable[[Callable[P, R]], CapturedFunction[P, R]]: ...


def capture(
    function: Callable[P, R] | None = None,
    *,
    operands: Literal["copy", "pointer"] = "copy",
    max_signatures: int = 8,
) -> CapturedFunction[P, R] | Callable[[Callable[P, R]], CapturedFunction[P, R]]:
    """Record the calls of a function as CUDA graphs, and replay each one by a single launch.

    The first call with a signature (shapes, strides and dtypes of its arrays, and the values of its other
    arguments) calls the function twice: once to compute the results that it returns, and once to record.
    Later calls copy the operands and launch the graph on the current stream.

    Parameters
    ----------
    function : callable, optional
        It works on arrays of this package, PyTorch or CuPy on one device. Without it, a decorator is
        returned.
    operands : {"copy", "pointer"}
        Copy operands into memory of the graph, so that any array with the signature may be passed; or use
        their memory, whose address then belongs to the signature.
    max_signatures : int
        The number of graphs that each thread keeps; the least recently used graph is destroyed first.

    Returns
    -------
    CapturedFunction
        It returns arrays as :class:`DeviceArray`, in the tuples, lists and dicts of the function. The next
        call with the same signature in this thread overwrites them: ``.copy()`` keeps them. It has
        ``close()`` and ``describe()``.

    Raises
    ------
    TypeError
        ``function`` is not callable; or, in a call, an argument is not hashable and not an array on the
        device.
    ValueError
        ``operands`` or ``max_signatures`` is not valid; or, in a call, the function is closed, or an operand
        is on another device.

    Warns
    -----
    CudnnWarning
        A call of the function cannot be recorded: it raised an error, waited for the device (``.numpy()``),
        drew random numbers, or changed the device. The warning names it once, and the function is called
        without a graph for this signature.

    Notes
    -----
    A replay repeats the work on the device, and nothing else: Python code does not run, and arrays and
    numbers from outside of the arguments are those of the recording. The graph keeps such a ``DeviceArray``
    in memory; keep tensors of PyTorch and arrays of CuPy yourself. Arrays that the function stores elsewhere
    are overwritten by each replay. With ``operands="copy"``, writes to an operand do not reach the caller's
    array. The settings belong to the signature.

    The calls of a finalizer that runs during the recording are recorded, too. A method has graphs for each
    object, which they keep alive.

    Examples
    --------
    >>> x, w = ct.full((1, 4, 8, 8), 1), ct.full((4, 4, 3, 3), 1)
    >>> layer = ct.capture(lambda x: ct.activation(ct.conv(x, w, padding=1)))
    >>> layer(x).shape  # computes, then records
    (1, 4, 8, 8)
    >>> float(layer(ct.full((1, 4, 8, 8), 2)).numpy().max())  # one launch
    72.0
    >>> layer.close()
    """
    if function is None:
        return partial(CapturedFunction, operands=operands, max_signatures=max_signatures)
    return CapturedFunction(function, operands, max_signatures)
