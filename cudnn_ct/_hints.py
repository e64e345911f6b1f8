"""Hints in error messages: how names and words of other libraries are written with this package.

``_foreign_names.json`` has our names with those of torch, jax, cupy, NumPy, TensorFlow, Theano, cudnn-
frontend and cuDNN. ``keywords``, ``words`` and ``dtypes``: the first that is accepted is meant. ``former``:
parameters that have an effect, and warn. ``order``: keywords that others take by position after the operands.
``advice``: keywords without a counterpart, by function or for all (""). ``functions`` are public names of
others, ``attributes`` belong to their arrays, and ``methods`` are functions that are methods of their arrays.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from .errors import warn_caller

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Array = TypeVar("Array", bound=type)

UNSET: Any = object()  # the default of required parameters


def _inverted(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return our names for each name of another library."""
    inverted: dict[str, tuple[str, ...]] = {}
    for ours, names in table.items():
        for name in names.split():
            inverted[name] = (*inverted.get(name, ()), ours)
    return inverted


def _split(table: dict[str, str]) -> dict[str, str]:
    """Return the text for each of the names that share it."""
    return {name: text for names, text in table.items() for name in names.split()}


_TABLES: dict[str, Any] = json.loads(pkgutil.get_data(__package__, "_foreign_names.json") or b"")
KEYWORDS, WORDS, DTYPES = (_inverted(_TABLES[name]) for name in ("keywords", "words", "dtypes"))
FORMER: dict[str, dict[str, str]] = _TABLES["former"]
ORDER: dict[str, str] = _TABLES["order"]
ADVICE: dict[str, dict[str, str]] = {name: _split(rows) for name, rows in _TABLES["advice"].items()}
PADDINGS = _split(_TABLES["paddings"])
FUNCTIONS = {name: ours for name, (ours,) in _inverted(_TABLES["functions"]).items()}
ATTRIBUTES = {
    **{name: ours for name, (ours,) in _inverted(_TABLES["attributes"]).items()},
    **{name: f"ct.{FUNCTIONS[name]}" for name in _TABLES["methods"].split()},
}
OPERATORS: dict[str, tuple[str, str]] = {name: tuple(row) for name, row in _TABLES["operators"].items()}


def known_keywords(function: Function) -> Function:
    """Let a function see wrong, superfluous and missing arguments, for which it calls :func:`corrected`.

    Required parameters get the default ``UNSET``: otherwise Python reports a missing argument before the
    function sees the keyword that was meant for it. The signature has no ``*more`` and ``**unknown``.
    """
    import inspect

    signature = inspect.signature(function)
    accepted = [one for one in signature.parameters.values() if one.name not in ("more", "unknown")]
    if len(accepted) == len(signature.parameters):
        return function
    function.__signature__ = signature.replace(parameters=accepted)  # type: ignore[attr-defined]
    known = {one.name: UNSET if one.default is one.empty else one.default for one in accepted}
    named = {one.name: known.pop(one.name) for one in accepted if one.kind is one.KEYWORD_ONLY}
    function.__defaults__, function.__kwdefaults__ = tuple(known.values()), named
    return function


def methods_of(public: str) -> Callable[[Function], Function]:
    """Return a decorator of a base: messages name the public class for its methods."""

    def rename(cls: Function) -> Function:
        for name, value in vars(cls).items():
            method = getattr(value, "__func__", getattr(value, "fget", value))  # or of a property
            if isinstance(method, FunctionType):
                method.__qualname__ = f"{public}.{name}"
                method.__code__ = method.__code__.replace(co_qualname=method.__qualname__)
        return cls

    return rename


def corrected(function: Callable[..., Result], given: Mapping[str, Any]) -> Result:
    """Call a function with its local variables ``given`` under their present names, or raise a TypeError."""
    known, former = dict(given), FORMER.get(function.__name__.removesuffix("_plan"), {})
    if more := known.pop("more", ()):
        raise _by_position(function, more, given)
    for name, value in known.pop("unknown").items():
        new = former.get(name)
        if new is None or not (known[new] is UNSET or known[new] is None):
            raise _unknown_keyword(function, name)
        warn_caller(f"{function.__name__}({name}=) is deprecated; write {new}=", DeprecationWarning)
        known[new] = value
    if given["unknown"]:
        return function(**known)
    missing = [repr(name) for name, value in given.items() if value is UNSET]
    name = _name(function)
    raise TypeError(f"{name}() missing required argument{'s' * (len(missing) > 1)}: {', '.join(missing)}")


def _name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _by_position(function: Callable[..., Any], more: Sequence[Any], given: Mapping[str, Any]) -> TypeError:
    """Return the error for ``more`` arguments by position than the function has, with their keywords."""
    import inspect  # only for an error

    name, parameters = _name(function), inspect.signature(function).parameters
    kinds = {one.name: one.kind for one in parameters.values() if one.name != "self"}
    keywords = [one for one, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    meant = [*dict.fromkeys([*ORDER.get(name, "").split(), *keywords])]
    of_arrays = [one for one in kinds if re.search("ArrayLike|OutLike", str(parameters[one].annotation))]
    arrays = {*of_arrays, *({*meant} - {*kinds})}
    found = []
    for value in more:  # an array is not meant for other parameters, nor a str for an axis
        fitting = [one for one in meant if one in arrays or not getattr(value, "shape", ())]
        keyword = next((one for one in fitting if one != "axis" or not isinstance(value, str)), "")
        meant = [one for one in meant if one != keyword]
        found.append(_advice(name, keyword, list(kinds)))
    advice = "; ".join(found)
    if isinstance(given.get("shape"), int):
        advice = "write the shape as one tuple"
    taken = len(kinds) - len(keywords)
    return TypeError(f"{name}() got {taken + len(more)} positional arguments, expected {taken}; {advice}")


def _unknown_keyword(function: Callable[..., Any], keyword: str) -> TypeError:
    import inspect  # only for an error

    name = _name(function)
    advice = _advice(name, keyword, list(inspect.signature(function).parameters))
    return TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {advice}")


def _closest(word: str, known: Iterable[str], cutoff: float = 0.75) -> list[str]:
    import difflib  # only for an error

    return difflib.get_close_matches(word, known, 1, cutoff)


def _advice(name: str, keyword: str, accepted: list[str]) -> str:
    """Return how a keyword of another library is written for the function of this name."""
    advice = ADVICE.get(name, {}).get(keyword)
    meant = next((one for one in (keyword, *KEYWORDS.get(keyword, ())) if one in accepted), None)
    if advice is None and meant is None:
        advice = ADVICE[""].get(keyword)
    if advice is None:
        close = [meant] if meant else _closest(keyword, accepted, 0.7)
        advice = f"write {close[0]}=" if close else f"expected one of {', '.join(accepted)}"
    return advice


def attribute_hint(name: str, public: Iterable[str]) -> str:
    """Return how a name of another library, or a misspelt one, is written; empty if nothing is close."""
    if name.startswith("_"):
        return ""
    if f" {name} " in " torch jax cupy ":  # packages that a program imports itself
        return f"; write import cudnn_ct.{name}"
    meant = FUNCTIONS.get(name) or (f"dnn.{name}" if name.startswith("dnn_") else _closest_name(name, public))
    return f"; write ct.{meant}" if meant else ""


def _closest_name(name: str, public: Iterable[str]) -> str:
    """Return the closest public name; names of gradients are alike by their ending, which is left out."""
    stem, known = name.removesuffix("_backward"), list(public)
    if stem != name and stem in known:  # an operation without such a gradient
        return "".join(_closest(name, [one for one in known if one.startswith(name)]))
    gradients = [one.removesuffix("_backward") for one in known if one.endswith("_backward")]
    if stem != name and (close := _closest(stem, gradients)):
        return f"{close[0]}_backward"
    return "".join(_closest(name, [one for one in known if stem == name or not one.endswith("_backward")]))


def word_hint(word: object, allowed: Iterable[str]) -> str:
    """Return which of the allowed words means a word of another library, or is close to it; else nothing."""
    if not isinstance(word, str):
        return ""
    text, known = word.lower(), list(allowed)
    if "half" in known and text in PADDINGS:
        return f"; {PADDINGS[text]}"
    meant = [one for one in WORDS.get(text, ()) if one in known]
    if text.startswith("cudnn_"):  # a member of an enum, such as CUDNN_POOLING_MAX
        meant += sorted((one for one in known if text.endswith(f"_{one}")), key=len)[-1:]
    if not meant and text in FUNCTIONS:  # a function of its own
        return f"; write ct.{FUNCTIONS[text]}"
    close = meant or _closest(text, known)
    return f"; write {close[0]!r}" if close else ""


def dtype_hint(dtype: object, names: Iterable[str]) -> str:
    """Return the name of a dtype of another library, such as ``torch.float16``; else nothing."""
    # An int is the second length of a shape that was not written as a tuple.
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        return "; write the shape as one tuple"
    if str(dtype) == "object":
        return "; NumPy gives it to None, to strings of several lengths and to lists of unequal lengths"
    text = str(getattr(dtype, "__name__", None) or dtype).rpartition(".")[2].lower()
    known = list(names)
    meant = [one for one in (text, *DTYPES.get(text, ())) if one in known] or _closest(text, known)
    return f"; write {meant[0]!r}" if meant else ""


# --- attributes of arrays ----------------------------------------------------------------------------------


class _ForeignAttribute:
    """An attribute that an array does not have; ``__getattr__`` would make reads of all others slower."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, array: object, owner: type) -> NoReturn:
        raise AttributeError(self.text)


def with_hints(cls: Array) -> Array:
    """Let attributes and operators that other libraries' arrays have raise errors that name ours."""
    for name, hint in ATTRIBUTES.items():
        text = f"a {cls.__name__} has no attribute {name!r}; write {hint}"
        setattr(cls, name, _ForeignAttribute(text))
    for name, (sign, hint) in OPERATORS.items():
        method = _rejected(cls, f"a {cls.__name__} has no operator {sign}; write {hint}")
        for special in (name, f"r{name}"):
            setattr(cls, f"__{special}__", method)
    setattr(cls, "__dir__", _known_names)  # noqa: B010  # mypy rejects the assignment
    return cls


def _known_names(array: object) -> list[str]:
    """Return the names of an array for ``dir``, without those of other libraries."""
    return [name for name in object.__dir__(array) if name not in ATTRIBUTES]


def _rejected(cls: type, text: str) -> Any:
    """Return a method that raises for arrays and numbers, and leaves other operands to their own classes."""

    def method(_: object, other: object = 0) -> object:
        if isinstance(other, (cls, Number)):
            raise TypeError(text)
        return NotImplemented

    return method
