"""The builder of graphs: :class:`Graph`, with the methods of all families."""

from __future__ import annotations

from typing import Self, overload

from ...array import DeviceArray
from ...shapes.graph.problem import GraphProblem
from ...typing import Algo, StreamLike
from .._algo_arguments import AlgoArguments
from .arithmetic import ActivationMethods, ArithmeticMethods
from .attention import AttentionMethods
from .built import BuiltGraph
from .moving import MovingMethods
from .products import NormMethods, ProductMethods
from .tensors import GraphTensor


class Graph(
    ArithmeticMethods, ActivationMethods, ProductMethods, NormMethods, MovingMethods, AttentionMethods
):
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
