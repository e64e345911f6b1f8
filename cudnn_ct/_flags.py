"""The flags of Theano's ``dnn`` module, as ``ct.config.dnn`` has them: one table, each row a flag.

A flag is set by assigning, ``ct.config.dnn.conv.algo_fwd = "fft"``, or in the environment,
``CUDNN_CT_DNN_CONV_ALGO_FWD=fft``. What is wrong in the environment is an error when a flag is first used,
since `import` must not fail for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FLAGS", "REMOVED", "Flags", "variable_of"]

_POLICIES = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")
_MOST = ("none", "small", "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused")


def _but(*names: str) -> tuple[str, ...]:
    return (*(name for name in _MOST if name not in names), *_POLICIES)


class Flag(NamedTuple):
    """One row: its default, the values there are (any path, where there are none), and what it means."""

    default: str | None
    known: tuple[str, ...]
    meaning: str


FLAGS: dict[str, Flag] = {
    "dnn.enabled": Flag(
        "auto", ("auto", "True", "False", "no_check"), "whether `cudnn_ct.dnn` may use, or must have, cuDNN"
    ),
    "dnn.conv.algo_fwd": Flag(
        "small", ("large", *_but("deterministic")), "the algorithm of convolutions that name none"
    ),
    "dnn.conv.algo_bwd_filter": Flag(
        "none", _but("winograd"), "the algorithm of gradients by the filters that name none"
    ),
    "dnn.conv.algo_bwd_data": Flag(
        "none", _but("small"), "the algorithm of gradients by the images that name none"
    ),
    "dnn.conv.precision": Flag(
        "as_input_f32",
        ("as_input_f32", "as_input", "float16", "float32", "float64"),
        "what convolutions are computed in that do not say",
    ),
    "dnn.library_path": Flag(None, (), "the folder of the cuDNN to load"),
    "dnn.include_path": Flag(None, (), "the folder of the cudnn_version.h that `dnn.version` compares"),
    "dnn.base_path": Flag(None, (), "the folder above those two, where they are not set"),
}

_BOTH = "dnn.conv.algo_bwd_filter and dnn.conv.algo_bwd_data"
REMOVED = {
    "dnn.conv.workmem": "dnn.conv.algo_fwd",
    "dnn.conv.workmem_bwd": _BOTH,
    "dnn.conv.algo_bwd": _BOTH,
    "dnn.bin_path": "dnn.library_path",
}

_PREFIX = "CUDNN_CT_"


def variable_of(flag: str) -> str:
    """Name the environment variable of a flag.

    >>> variable_of("dnn.conv.algo_fwd")
    'CUDNN_CT_DNN_CONV_ALGO_FWD'
    """
    return _PREFIX + flag.upper().replace(".", "_")


class Flags:
    """The flags below a name. Assigning wins over the environment, which wins over the default.

    >>> Flags({"CUDNN_CT_DNN_CONV_ALGO_FWD": "fft"}).conv.algo_fwd
    'fft'
    """

    _prefix: str
    _values: _Values

    def __init__(self, environ: Mapping[str, str] | _Values, prefix: str = "dnn") -> None:
        values = environ if isinstance(environ, _Values) else _Values(environ)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked of a copy that has no attributes yet, which must not recurse
            raise AttributeError(name)
        flag = f"{self._prefix}.{name}"
        if any(row.startswith(f"{flag}.") for row in FLAGS):
            return Flags(self._values, flag)
        if flag in REMOVED:
            raise AttributeError(_successor(flag))
        if flag not in FLAGS:
            raise AttributeError(_unknown(flag))
        return self._values.get(flag)

    def __setattr__(self, name: str, value: Any) -> None:
        flag = f"{self._prefix}.{name}"
        if flag in REMOVED:
            raise RuntimeError(_successor(flag))
        if flag not in FLAGS:
            raise AttributeError(_unknown(flag))
        self._values.assigned[flag] = _checked(flag, value, f"ct.config.{flag}")

    def __dir__(self) -> list[str]:
        inner = (flag.removeprefix(f"{self._prefix}.") for flag in FLAGS if flag.startswith(self._prefix))
        return sorted({name.partition(".")[0] for name in inner})

    def __repr__(self) -> str:
        return f"<flags {', '.join(flag for flag in FLAGS if flag.startswith(self._prefix))}>"


class _Values:
    """Assigned values, and the flags of the environment, which are checked when one is first used."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.assigned: dict[str, str | None] = {}
        # Only these variables are kept: os.environ itself cannot be pickled.
        self._environ = {name: text for name, text in environ.items() if name.startswith(f"{_PREFIX}DNN_")}
        self._paths = {
            flag: environ.get(variable_of(flag)) or row.default
            for flag, row in FLAGS.items()
            if not row.known
        }
        self._read: dict[str, str | None] | None = None

    def get(self, flag: str) -> str | None:
        """The value of a flag.

        Raises
        ------
        ValueError, RuntimeError
            The environment has a flag or a value that is not known, or a flag that was removed.
        """
        if flag in self._paths:  # which the search for cuDNN reads: it is not spoilt by other flags
            return self.assigned.get(flag, self._paths[flag])
        if self._read is None:
            self._read = _from(self._environ)
        return self.assigned.get(flag, self._read.get(flag, FLAGS[flag].default))


def _from(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The flags of an environment, checked."""
    known, removed = ({variable_of(flag): flag for flag in table} for table in (FLAGS, REMOVED))
    found: dict[str, str | None] = {}
    for variable, text in environ.items():
        if not text:
            continue
        if variable in removed:
            raise RuntimeError(f"{variable}: {_successor(removed[variable])}")
        if variable not in known:
            raise ValueError(f"{variable} is no flag; there are {', '.join(known)}")
        found[known[variable]] = _checked(known[variable], text, variable)
    return found


def _checked(flag: str, value: Any, where: str) -> str | None:
    known = FLAGS[flag].known
    if not known:
        if value is not None and not isinstance(value, str | os.PathLike):
            raise TypeError(f"{where} is a path or None, not {value!r}")
        return None if value is None else os.fspath(value)
    text = str(value) if isinstance(value, bool) else value
    if text not in known:
        raise ValueError(f"{where} must be one of {', '.join(known)}, not {value!r}")
    return str(text)


def _successor(flag: str) -> str:
    return f"the flag {flag} was removed; use {REMOVED[flag]}"


def _unknown(flag: str) -> str:
    return f"there is no flag {flag!r}; there are {', '.join(FLAGS)}"
