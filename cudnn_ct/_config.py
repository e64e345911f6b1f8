"""The package's settings: each row of settings.json is an attribute and an environment variable.

The module has an underscore because ``ct.config`` is the object in it: a submodule of that name would take
its place on the package as soon as anything imported it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_doctor.read import variables
from cudnn_doctor.read.variables import PREFIX, unknown_variables, variable_of

from .errors import warn_caller


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if (word := text.strip().lower()) not in words:
        raise ValueError("expected 1/0, true/false, yes/no or on/off")
    return words[word]


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("expected a number of at least 0")
    return int(text)


def _algorithm(name: str) -> str:
    from ._algorithm_names import checked_name  # hardly ever needed

    return checked_name(name)


def _bytes(text: str) -> int:
    """Parse a number of bytes, which may end in K, M or G: 512M."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = units.get(number[-1:], 1)
    try:
        return _count(number[:-1] if unit > 1 else number) * unit
    except ValueError:
        raise ValueError("expected a number of bytes, such as 67108864 or 64M") from None


def _certify(text: str) -> str:
    if text not in CERTIFY:
        raise ValueError(f"expected {' or '.join(CERTIFY)}")
    return text


def _seconds(text: str | float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError("expected a number of seconds of at least 0")
    return seconds


CERTIFY = ("new", "all", "off")


class Kind(NamedTuple):
    """A kind of setting: the accepted values in words and as types, and a parser of text."""

    takes: str
    types: tuple[type, ...]
    parse: Callable[[str], Any]
    check: Callable[[Any], object] = bool  # raises ValueError for a value of a right type


_PATH = (str, os.PathLike, type(None))
_KINDS = {
    "boolean": Kind("True or False", (bool,), _boolean),
    "path": Kind("a path or None", _PATH, str),
    "folder": Kind("a path, 'off' or None", _PATH, str),
    "algorithm": Kind("a policy or the name of an algorithm", (str,), _algorithm, _algorithm),
    "bytes": Kind("a number of bytes or None", (int, type(None)), _bytes),
    "count": Kind("a number", (int,), _count),
    "seconds": Kind("a number of seconds", (int, float), _seconds, _seconds),
    "certify": Kind("'new', 'all' or 'off'", (str,), lambda text: _certify(text.strip().lower()), _certify),
}


class Setting(NamedTuple):
    """A setting: a row of settings.json."""

    default: Any
    kind: str  # a key of `_KINDS`
    of_calls: bool  # whether it affects a call, and therefore belongs to its cache key
    meaning: str


SETTINGS = {name: Setting(**row) for name, row in variables.SETTINGS.items()}


class Snapshot(tuple[Any, ...]):
    """The settings that affect a call. Equal ones are one object, so that the cheapest hash serves."""

    __slots__ = ()
    __hash__ = object.__hash__


_snapshot = lru_cache(64, typed=True)(lambda *values: Snapshot(values))

_changing = threading.RLock()  # serialises updates of the settings snapshot
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release
    )


class Config:
    """Settings of the process. Assigning wins over the environment, which wins over the default.

    ``ct.config.dnn`` has the flags of :mod:`cudnn_ct.dnn`, which is imported on first use;
    ``ct.config.dnn__conv__algo_fwd`` is another spelling of ``ct.config.dnn.conv.algo_fwd``.
    `docs/settings.md` explains the settings; the environment variable of ``allow_tf32`` is
    ``CUDNN_CT_ALLOW_TF32``.

    Raises
    ------
    AttributeError
        No setting has this name.
    TypeError, ValueError
        The setting does not accept the value.

    Examples
    --------
    >>> from cudnn_ct._config import Config
    >>> Config({"CUDNN_CT_ALLOW_TF32": "0"}).allow_tf32
    False
    """

    # Real attributes of the object, so that reading one in the path of a call costs nothing; writing one is
    # checked.
    library: str | None
    allow_tf32: bool
    algo: str
    deterministic: bool
    workspace_limit: int | None
    autotune_max_engines: int
    online_seconds: float
    allow_runtime_compilation: bool
    dynamic_shapes: bool
    certify: str
    certify_seconds: float
    algo_cache: str | None
    facts: str | None
    plan_cache: bool
    replay: bool
    debug_sync: bool
    snapshot: Snapshot
    dnn: Any  # the flags of `cudnn_ct.dnn`, in a layer above this module; and as Theano spells each of them
    dnn__enabled: str
    dnn__conv__algo_fwd: str
    dnn__conv__algo_bwd_filter: str
    dnn__conv__algo_bwd_data: str
    dnn__conv__precision: str
    dnn__library_path: str | None
    dnn__include_path: str | None
    dnn__base_path: str | None
    environ: dict[str, str]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        # A copy of these variables only: os.environ cannot be pickled.
        ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
        object.__setattr__(self, "environ", ours)
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.default)
        self._refresh_snapshot()
        for name, setting in SETTINGS.items():
            text = environ.get(variable_of(name))
            try:
                if text:
                    setattr(self, name, _KINDS[setting.kind].parse(text))
            except ValueError as error:  # a warning, because `import` must not fail for it
                warn_caller(f"{variable_of(name)}={text!r} is ignored: {error}")
        for variable, meant in unknown_variables(environ).items():
            advice = f"did you mean {meant}?" if meant else "settings are the attributes of ct.config"
            warn_caller(f"unknown setting {variable}; {advice}")

    def __setattr__(self, name: str, value: object) -> None:
        owner, last = self._flag(name)
        if owner is not None:
            setattr(owner, last, value)
            return
        if name not in SETTINGS:
            raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")
        takes, types, _, check = _KINDS[SETTINGS[name].kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TypeError(f"config.{name} is {takes}, not {value!r}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"config.{name} is {takes} of at least 0, not {value!r}")
        try:
            check(value)
        except ValueError as error:
            raise ValueError(f"config.{name} is {takes}, not {value!r}: {error}") from None
        with _changing:
            object.__setattr__(self, name, value)
            self._refresh_snapshot()

    def _refresh_snapshot(self) -> None:
        """Give the settings that affect a call one object, which is a part of cache keys."""
        values = [getattr(self, name) for name, setting in SETTINGS.items() if setting.of_calls]
        object.__setattr__(self, "snapshot", _snapshot(*values))

    def _flag(self, name: str) -> tuple[object, str]:
        """Return the owner and the last name of a flag in Theano's spelling; None if the name is not one."""
        first, *names = name.split("__")
        if first != "dnn" or not names:
            return None, ""
        return reduce(getattr, names[:-1], self.dnn), names[-1]

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> object:
            if name == "dnn":  # imported on first use: no part of the settings depends on Theano's flags
                from cudnn_ct_dnn.flags import flags_of

                return flags_of(self)
            owner, last = self._flag(name)
            if owner is not None:
                return getattr(owner, last)
            raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in SETTINGS)})"


Config.__doc__ = f"{Config.__doc__}\n    The settings:\n\n" + "\n".join(
    f"    - ``{name}`` (default {row.default!r}): {row.meaning}" for name, row in SETTINGS.items()
)

config = Config()
