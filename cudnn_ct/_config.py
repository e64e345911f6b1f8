"""The package's settings: one table, each row an attribute and an environment variable.

The module has an underscore because ``ct.config`` is the object in it: a submodule of that name would take
its place on the package as soon as anything imported it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
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
}


class Config:
    """Settings of the process. Assigning wins over the environment, which wins over the default.

    >>> from cudnn_ct._config import Config
    >>> Config({"CUDNN_CT_ALLOW_TF32": "0"}).allow_tf32
    False
    """

    # Real attributes, so that reading one in the path of a call costs nothing; writing one is checked.
    library: str | None
    allow_tf32: bool

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        for name, setting in SETTINGS.items():
            text = environ.get(setting.variable)
            object.__setattr__(self, name, setting.default)
            try:
                if text:
                    setattr(self, name, setting.parse(text))
            except ValueError as error:  # a warning, because `import` must not fail for it
                message = f"{setting.variable}={text!r} is ignored: {error}"
                warnings.warn(message, CudnnWarning, stacklevel=2)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in SETTINGS:
            raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")
        if not isinstance(value, SETTINGS[name].types):
            raise TypeError(f"config.{name} is {SETTINGS[name].takes}, not {value!r}")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in SETTINGS)})"


config = Config()
