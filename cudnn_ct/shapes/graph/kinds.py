"""The table of all kinds of operations in a graph; the rule of a kind ``name`` is a function ``_name``."""

from __future__ import annotations

import json

from cudnn_doctor.read.files import resource

from . import matrices, pointwise, windows
from .rules import Kind

_RULES = {**vars(pointwise), **vars(matrices), **vars(windows)}
KINDS = {
    name: Kind(_RULES[f"_{name}"], **{"row": name, **row})
    for name, row in json.loads(resource("cudnn_ct/shapes/graph/kinds.json")).items()
}
