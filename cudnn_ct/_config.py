"""The package's settings: one table, each row an attribute and an environment variable.

The module has an underscore because ``ct.config`` is the object in it: a submodule of that name would take
its place on the package as soon as anything imported it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from .errors import CudnnWarning

__all__ = ["Config", "config"]


class Setting(NamedTuple):
    """One row: its environment variable, its default, how text becomes a value, and what it means."""

    variable: str
    default: Any
    parse: Callable[[str], Any]
    types: tuple[type, ...]
    takes: str
    meaning: str


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    word = text.strip().lower()
    if word not in words:
        raise ValueError("expected 1/0, true/false, yes/no or on/off")
    return words[word]


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("expected a number of at least 0")
    return int(text)


def _bytes(text: str) -> int:
    """A number of bytes, which may end in K, M or G: 512M."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = units.get(number[-1:], 1)
    try:
        return _count(number[:-1] if unit > 1 else number) * unit
    except ValueError:
        raise ValueError("expected a number of bytes, such as 67108864 or 64M") from None


SETTINGS: dict[str, Setting] = {
    "library": Setting(
        "CUDNN_CT_LIBRARY",
        None,
        str,
        (str, os.PathLike, type(None)),
        "a path or None",
        "the cuDNN to load: libcudnn.so.9 itself, or the folder that holds it",
    ),
    "allow_tf32": Setting(
        "CUDNN_CT_ALLOW_TF32",
        True,
        _boolean,
        (bool,),
        "True or False",
        "whether float32 work with precision='as_input_f32' may use TF32 tensor cores",
    ),
    "algo": Setting(
        "CUDNN_CT_ALGO",
        "heuristic",
        str,
        (str,),
        "a policy or the name of an algorithm",
        "how an algorithm is chosen where a call does not say",
    ),
    "deterministic": Setting(
        "CUDNN_CT_DETERMINISTIC",
        False,
        _boolean,
        (bool,),
        "True or False",
        "whether only algorithms are used whose results are the same from run to run",
    ),
    "workspace_limit": Setting(
        "CUDNN_CT_WORKSPACE_LIMIT",
        None,
        _bytes,
        (int, type(None)),
        "a number of bytes or None",
        "the scratch memory that an algorithm may take at most",
    ),
    "autotune_max_engines": Setting(
        "CUDNN_CT_AUTOTUNE_MAX_ENGINES",
        16,
        _count,
        (int,),
        "a number",
        "how many engines of the graph API autotuning tries next to the legacy calls; 0 for none",
    ),
    "allow_runtime_compilation": Setting(
        "CUDNN_CT_ALLOW_RUNTIME_COMPILATION",
        True,
        _boolean,
        (bool,),
        "True or False",
        "whether engines are used that are compiled when they are made, which takes long: by autotuning "
        "of convolutions, and for large activations and reductions",
    ),
    "algo_cache": Setting(
        "CUDNN_CT_ALGO_CACHE",
        None,
        str,
        (str, os.PathLike, type(None)),
        "a path, 'off' or None",
        "the file that keeps tuned algorithms; None is one in the user's cache folder",
    ),
    "debug_sync": Setting(
        "CUDNN_CT_DEBUG_SYNC",
        False,
        _boolean,
        (bool,),
        "True or False",
        "whether each operation is waited for, and the one that failed on the device is named",
    ),
}

# Settings that affect a call and therefore belong to its cache key.
_OF_CALLS = (
    "allow_tf32",
    "algo",
    "deterministic",
    "workspace_limit",
    "autotune_max_engines",
    "allow_runtime_compilation",
)

_changing = threading.RLock()  # no thread notes values that another has just replaced
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release
    )

_FLAG = "dnn__"  # dnn__conv__algo_fwd is dnn.conv.algo_fwd
_FLAGS = "dnn.flags"  # imported on first use: no part of the settings depends on Theano's flags


def _suggest(variable: str) -> str:
    """The variable of which this one is a misspelling; empty where it is none, or may well be another's."""
    known = [setting.variable for setting in SETTINGS.values()]
    if not variable.startswith("CUDNN_CT_") or variable in known:
        return ""
    from difflib import get_close_matches  # hardly ever needed

    return "".join(get_close_matches(variable, known, 1, cutoff=0.9))


class Config:
    """Settings of the process. Assigning wins over the environment, which wins over the default.

    Attributes
    ----------
    library : str or None
        ``CUDNN_CT_LIBRARY``: the cuDNN to load, ``libcudnn.so.9`` itself or its folder.
    allow_tf32 : bool
        ``CUDNN_CT_ALLOW_TF32``, True by default: whether float32 work may use TF32 tensor cores.
    algo : str
        ``CUDNN_CT_ALGO``, by default ``"heuristic"``: how algorithms are chosen.
    deterministic : bool
        ``CUDNN_CT_DETERMINISTIC``, False by default: whether only algorithms are used whose results are the
        same from run to run.
    workspace_limit : int or None
        ``CUDNN_CT_WORKSPACE_LIMIT``: bytes of scratch memory that an algorithm may take.
    autotune_max_engines : int
        ``CUDNN_CT_AUTOTUNE_MAX_ENGINES``, 16 by default: how many engines autotuning tries.
    allow_runtime_compilation : bool
        ``CUDNN_CT_ALLOW_RUNTIME_COMPILATION``, True by default: whether engines are used that are
        compiled when they are made.
    algo_cache : str or None
        ``CUDNN_CT_ALGO_CACHE``: the file that keeps tuned algorithms, or ``"off"``.
    debug_sync : bool
        ``CUDNN_CT_DEBUG_SYNC``, False by default: whether each operation is waited for, so that an operation
        that fails on the device is named. It counts when a thread first computes.
    dnn : Flags
        The flags of :mod:`cudnn_ct.dnn`, which is imported on first use.

    Raises
    ------
    AttributeError
        There is no such setting.
    TypeError, ValueError
        A value is none for it.

    Examples
    --------
    >>> from cudnn_ct._config import Config
    >>> Config({"CUDNN_CT_ALLOW_TF32": "0"}).allow_tf32
    False
    """

    # Real attributes, so that reading one in the path of a call costs nothing; writing one is checked.
    library: str | None
    allow_tf32: bool
    algo: str
    deterministic: bool
    workspace_limit: int | None
    autotune_max_engines: int
    allow_runtime_compilation: bool
    algo_cache: str | None
    debug_sync: bool
    snapshot: tuple[Any, ...]
    environ: dict[str, str]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        # A copy of these variables only: os.environ cannot be pickled.
        ours = {name: text for name, text in environ.items() if name.startswith("CUDNN_CT_")}
        object.__setattr__(self, "environ", ours)
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.default)
        self._refresh_snapshot()
        for name, setting in SETTINGS.items():
            text = environ.get(setting.variable)
            try:
                if text:
                    setattr(self, name, setting.parse(text))
            except ValueError as error:  # a warning, because `import` must not fail for it
                message = f"{setting.variable}={text!r} is ignored: {error}"
                warnings.warn(message, CudnnWarning, stacklevel=2)
        for variable in environ:
            if meant := _suggest(variable):
                warnings.warn(
                    f"unknown setting {variable}; did you mean {meant}?", CudnnWarning, stacklevel=2
                )

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(_FLAG):
            flags, name = self._flag(name)
            setattr(flags, name, value)
            return
        if name not in SETTINGS:
            raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")
        kinds = SETTINGS[name].types
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"config.{name} is {SETTINGS[name].takes}, not {value!r}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"config.{name} is {SETTINGS[name].takes} of at least 0, not {value!r}")
        with _changing:
            object.__setattr__(self, name, value)
            self._refresh_snapshot()

    def _refresh_snapshot(self) -> None:
        """Keep what calls depend on as one value that is ready to be a part of a key, a new one each time."""
        values = tuple(getattr(self, name) for name in _OF_CALLS)
        object.__setattr__(self, "snapshot", values)

    def __getattr__(self, name: str) -> Any:
        if name == "dnn":  # not a real attribute until the first use
            return import_module(f".{_FLAGS}", __package__).flags_of(self)
        if name.startswith(_FLAG):
            return getattr(*self._flag(name))
        raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")

    def _flag(self, name: str) -> tuple[Any, str]:
        """Return the owner and the name of a flag that is written with underscores: dnn__conv__algo_fwd."""
        _, *inner, last = name.split("__")
        flags: Any = self.dnn
        for part in inner:
            flags = getattr(flags, part)
        return flags, last

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in SETTINGS)})"


config = Config()
