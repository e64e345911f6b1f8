"""Plain words for the lines in which cuDNN rejects a graph: the rows of translations.json.

A line is cuDNN's own sentence, the condition that failed, or both: patterns match either, because versions
differ. Lines of functions that pass an error on (`check_for_support()`) have no row. A line without a row is
shown as it is.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import NamedTuple

from .._files import resource


class Translation(NamedTuple):
    """A kind of line: what must change, in words, and the versions of cuDNN that printed the line.

    ``pattern`` is searched for in the line. ``have`` states facts of the graph, and is omitted if the graph
    lacks one; its fields, and those of ``must``, are the facts of `explain.facts_of` and named groups of the
    pattern.
    """

    must_change: str
    pattern: str
    have: str
    must: str
    seen: list[str]


_SECTIONS = json.loads(resource("graph/translations.json"))  # the first row that matches a line is used
TRANSLATIONS = tuple(Translation(**row) for row in chain.from_iterable(_SECTIONS.values()))
