"""The flags of Theano's ``dnn`` module, ``ct.config.dnn``.

A flag is set by assignment, ``ct.config.dnn.conv.algo_fwd = "fft"``, or by an environment variable,
``CUDNN_CT_DNN_CONV_ALGO_FWD=fft``. The environment is checked when a flag is read, so that a bad value does
not break ``import``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_ct._algorithm_names import ALGORITHMS, SYNONYMS
from cudnn_doctor.read.variables import PREFIX, REMOVED, variable_of

if TYPE_CHECKING:
    from cudnn_ct._config import Config


class Flag(NamedTuple):
    """The default and the valid values of a flag; a flag without valid values is a path."""

    default: str | None
    values: tuple[str, ...] = ()


FLAGS: dict[str, Flag] = {
    "dnn.enabled": Flag("auto", ("auto", "True", "False", "no_check")),
    "dnn.conv.algo_fwd": Flag("small", (*ALGORITHMS["forward"], *SYNONYMS)),
    "dnn.conv.algo_bwd_filter": Flag("none", (*ALGORITHMS["backward_filter"], *SYNONYMS)),
    "dnn.conv.algo_bwd_data": Flag("none", (*ALGORITHMS["backward_data"], *SYNONYMS)),
    "dnn.conv.precision": Flag("as_input_f32", ("as_input_f32", "as_input", "float16", "float32", "float64")),
    "dnn.library_path": Flag(None),
    "dnn.include_path": Flag(None),
    "dnn.base_path": Flag(None),
}


def flags_of(config: Config) -> Flags:
    """Return the flags of a configuration; create them and apply their paths on the first call.

    >>> from cudnn_ct._config import Config
    >>> flags_of(Config({"CUDNN_CT_DNN_CONV_ALGO_FWD": "fft"})).conv.algo_fwd
    'fft'
    """
    # setdefault is atomic: threads that call at the same time get the same flags.
    flags: Flags = vars(config).setdefault("dnn", Flags(config, "dnn", {}))
    flags._write_library()
    return flags


class Flags:
    """The flags with a common prefix. Assignment wins over the environment, which wins over the default."""

    _config: Config
    _prefix: str
    _assigned: dict[str, str | None]  # also the path that was written to config.library, as "library"

    def __init__(self, config: Config, prefix: str, assigned: dict[str, str | None]) -> None:
        vars(self).update(_config=config, _prefix=prefix, _assigned=assigned)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle read attributes before they exist; do not recurse
            raise AttributeError(name)
        flag = f"{self._prefix}.{name}"
        if flag in FLAGS:
            return self._value(flag)
        if any(row.startswith(f"{flag}.") for row in FLAGS):
            return Flags(self._config, flag, self._assigned)
        raise AttributeError(_missing(flag))

    def __setattr__(self, name: str, value: object) -> None:
        flag = f"{self._prefix}.{name}"
        if flag not in FLAGS:
            raise (RuntimeError if flag in REMOVED else AttributeError)(_missing(flag))
        self._assigned[flag] = _checked(flag, value, f"ct.config.{flag}")
        self._write_library()

    def _value(self, flag: str) -> str | None:
        """Return the value of a flag; raise if the environment contains an unknown flag or a bad value.

        A path is returned even then, because it is read by the import of `cudnn_ct.dnn`.
        """
        environ = self._config.environ
        if FLAGS[flag].values:
            _check_environ(environ)
        return self._assigned.get(flag, environ.get(variable_of(flag)) or FLAGS[flag].default)

    def _write_library(self) -> None:
        """Write the paths to ``config.library``, unless the user has set ``config.library``."""
        path, written = self._value("dnn.library_path") or self._value("dnn.base_path"), "library"
        before = self._assigned.get(written)
        if path != before and self._config.library in (None, "", before):
            self._config.library = self._assigned[written] = path


_FLAG_OF = {variable_of(flag): flag for flag in (*FLAGS, *REMOVED)}


def _check_environ(environ: dict[str, str]) -> None:
    for variable, text in environ.items():
        if text and variable.startswith(f"{PREFIX}DNN_"):
            flag = _FLAG_OF.get(variable)
            if flag is None:
                known = ", ".join(map(variable_of, FLAGS))
                raise ValueError(f"{variable} is not a flag; the flags are {known}")
            if flag in REMOVED:
                raise RuntimeError(f"{variable}: {_missing(flag)}")
            _checked(flag, text, variable)


def _checked(flag: str, value: object, source: str) -> str | None:
    values = FLAGS[flag].values
    if not values:
        if value is not None and not isinstance(value, str | os.PathLike):
            raise TypeError(f"{source} is not a path: got {value!r}, expected a path or None")
        return None if value is None else os.fspath(value)
    text = str(value) if isinstance(value, bool) else value
    if text not in values:
        raise ValueError(f"{source} is not valid: got {value!r}, expected one of {', '.join(values)}")
    return str(text)


def _missing(flag: str) -> str:
    if flag in REMOVED:
        return f"the flag {flag} was removed; use {' and '.join(REMOVED[flag])}"
    return f"the flag {flag!r} does not exist; the flags are {', '.join(FLAGS)}"
