"""Read the names and words of other libraries, and how the same is written here: ``_foreign_names.json``.

Its tables have our names with those of torch, jax, cupy, NumPy, TensorFlow, Theano, cudnn-frontend and cuDNN.
``keywords``, ``words`` and ``dtypes``: the first that is accepted is meant. ``former``: parameters that have
an effect, and warn. ``order``: keywords that others take by position after the operands. ``advice``: keywords
without a counterpart, by function or for all (""). ``functions`` are public names of others, ``attributes``
belong to their arrays, and ``methods`` are functions that are methods of their arrays.
"""

from __future__ import annotations

import json
import pkgutil
from typing import Any


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
