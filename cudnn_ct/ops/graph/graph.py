"""The builder of graphs: :class:`Graph`, with the methods of all families; those that move elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Self, overload

from ..._hints import methods_of
from ...array import DeviceArray
from ...dtypes import GRAPH_DTYPES
from ...shapes.checks import as_bool, as_choice, as_float, as_int, as_ints
from ...shapes.graph.problem import GraphProblem
from ...typing import Algo, StreamLike
from .._graph_source import AlgoArguments
from .arithmetic import PointwiseMethods
from .attention import AttentionMethods
from .builder import GraphBuilder
from .built import BuiltGraph
from .products import NormMethods, ProductMethods
from .tensors import GraphTensor, Operands


@methods_of("Graph")
class MovingMethods(GraphBuilder):
    """Reshape, transpose, slice, concatenate, load pages, draw random numbers, quantise blocks."""

    def reshape(self, x: GraphTensor, shape: Iterable[int], *, name: str | None = None) -> GraphTensor:
        """Return the elements of x, in C order, in another shape."""
        return self._apply("reshape", {"x": x}, name, shape=as_ints(shape, "shape"))["y"]

    def transpose(self, x: GraphTensor, axes: Sequence[int], *, name: str | None = None) -> GraphTensor:
        """Return x with its axes in another order."""
        return self._apply("transpose", {"x": x}, name, permutation=as_ints(axes, "axes"))["y"]

    def slice(
        self,
        x: GraphTensor,
        start: Sequence[int],
        limit: Sequence[int],
        steps: Sequence[int] | None = None,
        *,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the elements of x from ``start`` to before ``limit`` along each axis."""
        return self._apply(
            "slice",
            {"x": x},
            name,
            start_indices=as_ints(start, "start"),
            limit_indices=as_ints(limit, "limit"),
            strides=None if steps is None else as_ints(steps, "steps"),
        )["y"]

    def concat(self, tensors: Sequence[GraphTensor], axis: int, *, name: str | None = None) -> GraphTensor:
        """Return tensors joined along an axis."""
        if not isinstance(tensors, list | tuple):
            raise TypeError(f"tensors must be a sequence of tensors: got {tensors!r}")
        if len(tensors) < 2:
            raise ValueError(f"tensors are too few: got {len(tensors)}, expected at least 2")
        operands: Operands = {f"x{number}": one for number, one in enumerate(tensors)}
        return self._apply("concat", operands, name, axis=as_int(axis, "axis"))["y"]

    def rng(
        self,
        shape: Iterable[int],
        seed: GraphTensor,
        offset: GraphTensor,
        *,
        distribution: Literal["bernoulli", "uniform", "normal"] = "bernoulli",
        probability: float = 0.5,
        bounds: tuple[float, float] = (0.0, 1.0),
        mean: float = 0.0,
        deviation: float = 1.0,
        name: str | None = None,
    ) -> GraphTensor:
        """Return random numbers by the Philox generator; seed and offset are int64 tensors (1, 1, 1, 1)."""
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise TypeError(f"bounds must be two numbers: got {bounds!r}")
        kind = as_choice(distribution, ("bernoulli", "uniform", "normal"), "distribution")
        of_distribution: dict[str, dict[str, float]] = {
            "bernoulli": {"bernoulli_dist_probability": probability},
            "uniform": {"uniform_dist_minimum": bounds[0], "uniform_dist_maximum": bounds[1]},
            "normal": {"normal_dist_mean": mean, "normal_dist_standard_deviation": deviation},
        }
        parameters = {key: as_float(value, key) for key, value in of_distribution[kind].items()}
        operands: Operands = {"seed": seed, "offset": offset}
        return self._apply(
            "rng", operands, name, shape=as_ints(shape, "shape"), distribution=kind, **parameters
        )["y"]

    def paged_cache_load(
        self,
        container: GraphTensor,
        page_table: GraphTensor,
        lengths: GraphTensor,
        max_length: int,
        *,
        transposed: bool = False,
        name: str | None = None,
    ) -> GraphTensor:
        """Return keys or values (B, H, max_length, D) from a container (blocks, H, block, D) of pages.

        ``page_table`` (B, 1, blocks per sequence, 1) int32 names the blocks of each sequence, and ``lengths``
        (B, 1, 1, 1) int32 their numbers of keys. ``transposed`` exchanges the last two axes.
        """
        operands: Operands = {"container": container, "page_table": page_table, "sequence": lengths}
        longest, transposes = as_int(max_length, "max_length"), as_bool(transposed, "transposed") or None
        return self._apply("paged_cache_load", operands, name, max_length=longest, transposed=transposes)["y"]

    def block_scale_quantize(
        self,
        x: GraphTensor,
        block_size: int,
        dtype: str = "float8_e4m3",
        scale_dtype: str = "float8_e8m0",
        *,
        name: str | None = None,
    ) -> tuple[GraphTensor, GraphTensor]:
        """Return x in a narrow dtype, and a scale for each block of elements along the contiguous axis."""
        for argument, value in (("dtype", dtype), ("scale_dtype", scale_dtype)):
            if not isinstance(value, str) or value not in GRAPH_DTYPES:
                raise ValueError(f"{argument} is unknown: got {value!r}, expected {', '.join(GRAPH_DTYPES)}")
        made = self._apply(
            "block_scale_quantize",
            {"x": x},
            name,
            block_size=as_int(block_size, "block_size"),
            dtype=dtype,
            scale_dtype=scale_dtype,
        )
        return made["y"], made["scale"]

    def block_scale_dequantize(
        self, x: GraphTensor, scale: GraphTensor, block_size: int, *, name: str | None = None
    ) -> GraphTensor:
        """Return x times the scale of its block; blocks lie along the contiguous axis of x."""
        size = as_int(block_size, "block_size")
        return self._apply("block_scale_dequantize", {"x": x, "scale": scale}, name, block_size=size)["y"]


class Graph(PointwiseMethods, ProductMethods, NormMethods, MovingMethods, AttentionMethods):
    """Operations that cuDNN computes together, usually in one kernel.

    :meth:`input` returns a tensor for each array of a call, the methods named after operations return tensors
    of results, and :meth:`build` returns a function of arrays. Tensors between operations have no memory.
    Shapes broadcast as in NumPy. See the guide to graphs.

    Parameters
    ----------
    intermediate_dtype : optional
        Dtype of tensors between operations.
    compute_dtype : optional
        Dtype in which operations compute and accumulate, and that of numbers.

    Notes
    -----
    Outputs have the dtype of the first floating-point input, or that between operations if there is none,
    unless :meth:`GraphTensor.output` sets another one. Statistics and sums are float32. cuDNN computes graphs
    of certain patterns only; :meth:`build` raises NotSupportedError with the reasons if it has no engine for
    a graph.

    Examples
    --------
    >>> with ct.Graph() as g:
    ...     x, w, b = g.input((2, 16, 8)), g.input((8, 24)), g.input((24,))
    ...     y = g.relu(x @ w + b)
    >>> y.shape
    (2, 16, 24)
    >>> ones = np.ones((2, 16, 8), "f"), np.ones((8, 24), "f"), np.ones(24, "f")
    >>> float(ct.reference.graph(g.define(y), *ones).max())
    9.0
    """

    @overload
    def build(
        self,
        output: GraphTensor,
        /,
        *,
        algo: Algo | None = ...,
        deterministic: bool | None = ...,
        workspace_limit: int | None = ...,
        strict: bool = ...,
        dynamic_shapes: bool | None = ...,
        stream: StreamLike | None = ...,
    ) -> BuiltGraph[DeviceArray]: ...

    @overload
    def build(
        self,
        *outputs: GraphTensor,
        algo: Algo | None = ...,
        deterministic: bool | None = ...,
        workspace_limit: int | None = ...,
        strict: bool = ...,
        dynamic_shapes: bool | None = ...,
        stream: StreamLike | None = ...,
    ) -> BuiltGraph[tuple[DeviceArray, ...]]: ...

    def build(
        self,
        *outputs: GraphTensor,
        algo: Algo | None = None,
        deterministic: bool | None = None,
        workspace_limit: int | None = None,
        strict: bool = False,
        dynamic_shapes: bool | None = None,
        stream: StreamLike | None = None,
    ) -> BuiltGraph[DeviceArray] | BuiltGraph[tuple[DeviceArray, ...]]:
        """Return a function of arrays that computes ``outputs``.

        With ``algo="heuristic"`` or a name, the graph is planned now, for the current device and thread; with
        ``"autotune"``, the first call times the engines on its arrays, unless the cache has their times.

        Parameters
        ----------
        *outputs : GraphTensor
            The results, before the tensors that :meth:`GraphTensor.output` made outputs.
        algo : str or Candidate, optional
            "heuristic", "autotune", "online", the name of an engine such as ``"engine 4 knobs 2=1"``, or a
            candidate; by default the policy of ``ct.config.algo``.
        deterministic : bool, optional
            Reject engines whose results differ from run to run; by default ``ct.config.deterministic``.
        workspace_limit : int, optional
            In bytes; engines that need more are rejected. By default ``ct.config.workspace_limit``.
        strict : bool
            Whether no other engine replaces a named one that cuDNN rejects.
        dynamic_shapes : bool, optional
            Whether to use the kernels that were compiled for other sizes of the same graph, where cuDNN
            supports that; by default ``ct.config.dynamic_shapes``.
        stream : optional
            A stream of the device to plan for; by default that of ``ct.use``.

        Raises
        ------
        ValueError
            The graph has no inputs or outputs, or has unused inputs; see :meth:`define`.
        NotSupportedError
            cuDNN has no engine for the graph. If an operation is newer than cuDNN, a note says so.
        VersionMismatchError
            The loaded cuDNN lacks an operation; the message has the version that introduced it.
        """
        problem: GraphProblem = self.define(*outputs)
        arguments = AlgoArguments(algo, deterministic, workspace_limit)
        built: BuiltGraph[DeviceArray] = BuiltGraph(problem, arguments, strict, dynamic_shapes)
        built.prepare(stream)
        return built

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the graph as it is: the block only shows where it is defined."""

    def __repr__(self) -> str:
        return f"<Graph of {len(self._nodes)} operations>"
