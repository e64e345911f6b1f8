"""Completes the docstrings of operations with the parameters and errors that they share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from .._hints import known_keywords

Function = TypeVar("Function", bound=Callable[..., Any])

_PARAMETERS = """\
alpha : float
    Factor of the result, or of the first of several.
beta : float
    Factor of the contents of ``out``, which are added to the result, or to the first of several. If it is 0,
    ``out`` is only written.
out : device array, shape and dtype of the result, optional
    Destination of the result, with any strides. It must not overlap an operand.
stream : optional
    Stream of the work: an address, or an object with ``__cuda_stream__``; by default that of ``ct.use``.
dy : device array, shape and dtype of x
momentum : float, 0 to 1
    Weight of this batch: cuDNN's ``exponentialAverageFactor``.
epsilon : float, at least 0
algo : str or Candidate, optional
    How the engine is selected. ``"heuristic"`` (the default of ``ct.config.algo``) takes the first candidate
    of cuDNN's heuristics. ``"autotune"`` times the candidates on the operands of the first call,
    ``"online"`` one of them after each later call. The name of an engine, such as ``"engine 4"`` or
    ``"engine 4 knobs 24=3"``, selects it.
deterministic : bool, optional
    Use only engines whose results are the same, bit for bit, from run to run.
workspace_limit : int, optional
    Maximum bytes of workspace of an engine.
bias_gradient : bool
    Whether the gradient of a bias is computed.
"""

_SEVERAL_OUTS = """\
out : device array, or a tuple with an array or None for each result, optional
    Destination of the first result, or of each result in the order of the returned tuple, with any strides;
    None for a new array. A result that does not exist is None, or left out at the end. No array may overlap
    an operand or another result. DeviceArrays of the same memory are returned.
"""

_RAISES = """\
TypeError
    An operand is not on the device, or a dtype or the type of a parameter is not supported.
ValueError
    Shapes or parameters do not match (the message has the numbers), or an operand is closed or on another
    device, or ``beta`` is given without ``out``.
NotSupportedError
    cuDNN has no implementation for the problem; the message has the reason for each that was rejected.
AllocationError
    Device memory ran out.
"""

_RETURNS = "DeviceArray, shape and dtype of x; or ``out`` as one"

_REPRODUCIBLE = "By cuDNN's manual, results are the same bits from run to run on GPUs of one architecture."

_TITLE = re.compile(r"^([A-Z][a-z]+)\n-{4,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^\S.*\n?(?:(?:[ \t].*)?\n?)*?(?=^\S|\Z)", re.MULTILINE)


def documented(*donors: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator that completes the sections of a docstring.

    A parameter without a description gets that of the last of the ``donors``, or else that of all operations.
    By default, the result has the shape and dtype of x, and is the same from run to run. Errors of all
    operations come before those of the docstring. A function with ``**unknown`` sees wrong calls, as by
    :func:`known_keywords`.
    """

    def complete(function: Function) -> Function:
        if function.__doc__:  # it is None under python -OO
            function.__doc__ = _completed(function, donors)
        return known_keywords(function)

    return complete


def _completed(function: Callable[..., Any], donors: tuple[Callable[..., Any], ...]) -> str:
    summary, sections = _sections(function)
    out = function.__annotations__.get("out", "")
    known = _entries(_PARAMETERS) | (_entries(_SEVERAL_OUTS) if "OutLike" in out else {})
    for one in (*donors, function):
        described = _entries(_sections(one)[1].get("Parameters", ""))
        if one.__annotations__.get("out") != out:  # one array, or one for each of several results
            described.pop("out", None)
        known |= described
    parameters = [
        name for name in inspect.signature(function).parameters if name not in ("self", "more", "unknown")
    ]
    inapplicable = "" if "beta" in parameters else ", or ``beta`` is given without ``out``"
    raised = _entries(_RAISES.replace(inapplicable, "")) | _entries(sections.get("Raises", ""))
    sections["Parameters"] = "".join(known[name] for name in parameters)
    sections.setdefault("Returns", _RETURNS)
    sections["Raises"] = "".join(raised.values())
    if (notes := sections.get("Notes")) and "run to run" not in " ".join(notes.split()):
        sections["Notes"] = f"{notes.rstrip()}\n\n{_REPRODUCIBLE}"
    titles = ("Parameters", "Returns", "Raises", "Notes", "Examples")
    parts = (f"{title}\n{'-' * len(title)}\n{sections[title]}" for title in titles if title in sections)
    return "\n\n".join([summary, *map(str.rstrip, parts)])


def _sections(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the sections by title."""
    summary, *parts = _TITLE.split(inspect.getdoc(function) or "")
    return summary.rstrip(), dict(zip(parts[::2], parts[1::2], strict=True))


def _entries(section: str) -> dict[str, str]:
    """Return the entries of a section by name; parameters that share a description get one each."""
    entries = {}
    for entry in _ENTRY.findall(section):
        header, _, text = entry.rstrip().partition("\n")
        names, colon, kind = header.partition(" : ")
        for name in names.split(", "):
            entries[name] = f"{name}{colon}{kind}\n{text}\n" if text else f"{name}{colon}{kind}\n"
    return entries
