"""Names of the environment variables that the package reads, and the names that are meant by unknown ones.

settings.json has the settings of `cudnn_ct._config` and the flags of `cudnn_ct_dnn.flags`. The doctor imports
this module too: it has no imports beyond the standard library, and runs with Python 3.8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from . import files as _files

PREFIX = "CUDNN_CT_"
TABLES: dict[str, Any] = json.loads(_files.resource("cudnn_doctor/read/settings.json"))
SETTINGS: dict[str, dict[str, Any]] = TABLES["settings"]
FLAGS: list[str] = TABLES["flags"]
REMOVED: dict[str, list[str]] = TABLES["removed_flags"]  # with the flags that replace them


def variable_of(name: str) -> str:
    """Return the environment variable of a setting or a flag."""
    return PREFIX + name.upper().replace(".", "_")


def unknown_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the variables that begin like those of the package but are not read, and the nearest ones.

    The nearest one is empty if no name is similar.
    """
    known = set(map(variable_of, [*SETTINGS, *FLAGS, *TABLES["of_tests"]]))
    stem = PREFIX.replace("_", "")
    unknown = (name for name in names if name.upper().replace("_", "").startswith(stem))
    return {name: _nearest(name) for name in sorted(set(unknown) - known)}


def _nearest(variable: str) -> str:
    """Return the variable that replaces a removed one, has all of its words, or has the most similar name."""
    from difflib import get_close_matches  # hardly ever needed

    instead = {variable_of(flag): variable_of(flags[0]) for flag, flags in REMOVED.items()}
    name = variable.upper()
    if name in instead:
        return instead[name]
    valid = list(map(variable_of, [*SETTINGS, *FLAGS]))
    words = set(name.split("_"))
    whole = [each for each in valid if words <= set(each.split("_"))]
    ends = {each.replace("_", "")[len("CUDNNCT") :]: each for each in valid}
    close = get_close_matches(name.replace("_", "")[len("CUDNNCT") :], ends, 1)
    return (whole or [ends[end] for end in close] or [""])[0]
