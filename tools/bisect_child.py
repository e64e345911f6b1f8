"""The child process of tools/bisect_cudnn.py: plan or compute one problem with one cuDNN.

It reads a request from stdin, and writes an answer to stdout. A problem is a convolution, or a Python file
with ``graph`` (a graph, or a function that returns one) or ``call`` (a function that returns arrays).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from cudnn_ct import _lib, reference
from cudnn_ct._dlopen import open_library
from cudnn_ct.array_shapes import only_shapes
from cudnn_ct.autotune import benchmark
from cudnn_ct.availability import available
from cudnn_ct.cli.offline import read_request, user_file
from cudnn_ct.cli.options import Convolution
from cudnn_ct.cli.output import first_line, words_of
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnError, LibraryNotFoundError, NotSupportedError
from cudnn_ct.facts import Target
from cudnn_ct.graph.candidates import engine_candidates
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import Graph
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.ops.conv.candidates import with_even_padding
from cudnn_ct.ops.conv.graph import candidates
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.graph.problem import GraphProblem

MAX_PRODUCTS = 1 << 27  # of a convolution that NumPy computes within seconds


def answer() -> None:
    """Run as the child process."""
    request = read_request()
    result: dict[str, Any]
    try:
        result = _planned(request) if request["device"] else _computed(request)
        result["version"] = _lib.load().version
    except NotSupportedError as error:
        result = {"unsupported": first_line(error), "version": _lib.load().version}
    except LibraryNotFoundError as error:  # such as the libcublasLt of another CUDA
        result = {"missing": first_line(error)}
    except _WrongFileError as error:
        result = {"wrong_file": str(error)}
    except Exception as error:  # the file of a user may raise anything
        here = available()
        if not request["device"] and not here:
            result = {"no_gpu": here.reason}
        else:
            result = {"failed": words_of(error, request["file"] or "")}
    print(f"\n{json.dumps(result)}", flush=True)
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


# --- planning ----------------------------------------------------------------------------------------------


def _planned(request: dict[str, Any]) -> dict[str, Any]:
    nvrtc: Any = _lib.load().find_nvrtc() or request["nvrtc"]
    if nvrtc:
        open_library(nvrtc)
    planner = Planner(request["device"])
    if request["file"]:
        rows = engine_candidates(_graph_of(request["file"], planner), EngineRules(), planner)
    else:
        problem = _convolution(request["convolution"]).problem(request["allow_tf32"])
        rows = candidates(with_even_padding(problem), planner)
    usable = [row.algorithm for row in rows if not row.rejected]
    if not usable:
        raise NotSupportedError(_why(rows))
    return {"engines": usable}


def _graph_of(file: str, planner: Planner) -> Graph:
    """Return the graph that a file defines; a graph of `ct.Graph` is given as its ``define`` returns it."""
    with only_shapes():  # no GPU is here
        given = _names(file, "graph", " with --gpu")["graph"]
        value = given() if callable(given) else given
    target = Target(planner.library.version, planner.library.kind)
    value = lowered(value, target) if isinstance(value, GraphProblem) else value
    if not isinstance(value, Graph):
        raise _WrongFileError(
            f"{file}: graph is not a graph: got {type(value).__name__}, expected the result of "
            "ct.Graph.define, a Graph of cudnn_ct.graph.operations, or a function that returns one of them"
        )
    return value


def _why(rows: Sequence[Candidate]) -> str:
    reasons = dict.fromkeys(row.rejected.splitlines()[0] for row in rows)
    return "; ".join([*reasons][:3]) or "no engine"


# --- computing ---------------------------------------------------------------------------------------------


def _computed(request: dict[str, Any]) -> dict[str, Any]:
    """Run the problem, store its results in a file, and return its time and its error."""
    names = _names(request["file"], "call", " without --gpu") if request["file"] else {}
    here = available()  # the file may have replaced the library
    if not here:
        return {"no_gpu": here.reason}
    call, expect = (names["call"], names.get("reference")) if names else _calls(request)
    results = _arrays(call())
    want = _arrays(expect()) if expect else None
    (time,) = benchmark.benchmark([call], streams.current_stream())
    if isinstance(time, CudnnError):
        raise time
    np.savez(request["results"], *results)
    return {"ms": time, "error": None if want is None else _worst(results, want)}


def _worst(results: Sequence[Any], want: Sequence[Any]) -> float:
    if len(results) != len(want):
        raise ValueError(f"`call` returns {len(results)} arrays, and `reference` {len(want)}")
    return max((difference(got, one) for got, one in zip(results, want, strict=True)), default=0.0)


def _calls(request: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
    """Return the call of a convolution, and NumPy's if that takes seconds at most."""
    import cudnn_ct as ct
    from cudnn_ct.cli.algorithms import operands_of

    convolution = _convolution(request["convolution"])
    first, second, shape = operands_of(convolution)
    operands = (first, second) if shape is None else (first, second, shape)
    name = "conv" if convolution.direction == "forward" else f"conv_{convolution.direction}"
    given = {"precision": convolution.precision, **convolution.geometry}

    def expected() -> Any:
        wide = [array.numpy().astype(np.float64) for array in (first, second)]
        return getattr(reference, name)(*wide, *operands[2:], **convolution.geometry)

    def call() -> Any:
        return getattr(ct, name)(*operands, **given)

    return call, expected if _products(convolution) <= MAX_PRODUCTS else None


def _products(convolution: Convolution) -> int:
    return prod(convolution.shapes["y"]) * prod(convolution.w[1:])


def difference(result: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays, relative to the largest element or to 1."""
    if result.shape != want.shape:
        return float("inf")
    if not result.size:
        return 0.0
    largest = np.abs(result.astype(np.float64) - want.astype(np.float64)).max()
    relative = float(largest) / max(1.0, float(np.abs(want.astype(np.float64)).max()))
    return relative if relative == relative else float("inf")  # NaN


def _arrays(results: Any) -> list[np.ndarray[Any, Any]]:
    arrays = results if isinstance(results, tuple | list) else [results]
    return [np.asarray(each.numpy() if hasattr(each, "numpy") else each) for each in arrays]


# --- the file of a user ------------------------------------------------------------------------------------


class _WrongFileError(Exception):
    """The file of a user does not define a problem."""


def _names(path: str, wanted: str, condition: str = "") -> dict[str, Any]:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        user_file(path)  # `runpy` would wait for a pipe
    except ValueError as error:
        raise _WrongFileError(str(error)) from None
    names = runpy.run_path(path)
    if wanted not in names:
        raise _WrongFileError(f"{path} does not define {wanted}, which it must{condition}")
    return names


def _convolution(row: dict[str, Any]) -> Convolution:
    padding = row["padding"]
    if isinstance(padding, list):  # JSON has no tuples
        padding = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in padding)
    return Convolution(**{**row, "padding": padding})
