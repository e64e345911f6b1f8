"""The fields of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tests.oracle.answer import Arguments, Compute, Scale
from tests.oracle.recipes import Recipe, Source


class Door(NamedTuple):
    """A function of `cudnn_ct.jax`.

    ``operands`` are the names of drawn operands in its order, ``arguments`` those of drawn arguments, each
    with the function's own name. ``result`` is the name that answers have for its first result.
    """

    operands: tuple[str, ...]
    arguments: Mapping[str, str]
    result: str = "out"


def same(*names: str) -> dict[str, str]:
    """Return arguments that the function calls as the operation does."""
    return {name: name for name in names}


class Operation(NamedTuple):
    """All that the tests know of an operation.

    Attributes
    ----------
    draw : function of a Source
        Returns a recipe of a call.
    by_loops, by_torch : functions of operands and arguments
        Two answers, by NumPy and loops and by PyTorch, written without reading `cudnn_ct`. The function
        imports PyTorch, because most tests run without it.
    scale : function of a table of values, operands, arguments and results
        Returns the sizes that errors are measured by, as in `tests.oracle.magnitude`.
    case : function of a NumPy generator
        Draws operands and arguments for the comparison of both answers.
    open, rounded : functions as ``scale``, optional
        Return masks of elements that are not compared, and magnitudes of what is rounded to the dtype of the
        result, if they are smaller than ``scale``.
    factor, roundings : int, optional
        The bound of an error, as in `tests.oracle.judge`.
    large : function of a Source and a number of elements, optional
        Returns a recipe of a call whose sums are long.
    jitted : Door, optional
        The function of `cudnn_ct.jax`.
    c_calls : int
        Number of C calls that compute a simple call.
    keywords : dict
        The arguments that a simple call requires besides arrays.
    on_images : bool
        Whether `tests.op_cases.simple_call` calls it: its operands are images (x, y, dy, a, b) and
        per-channel parameters, and its first result has the layout of the images.
    varies : bool
        Whether the last bits may vary from run to run, by cuDNN's manual.
    """

    draw: Callable[[Source], Recipe]
    by_loops: Compute
    by_torch: Callable[[dict[str, Any], Arguments], dict[str, Any]]
    scale: Scale
    case: Callable[[np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]
    open: Scale | None = None
    rounded: Scale | None = None
    factor: int | None = None
    roundings: int | None = None
    large: Callable[[Source, int], Recipe] | None = None
    jitted: Door | None = None
    c_calls: int = 1
    keywords: dict[str, Any] = {}  # noqa: RUF012 - never changed
    on_images: bool = True
    varies: bool = False
