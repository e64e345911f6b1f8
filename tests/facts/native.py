"""Native graphs checked against the facts about them, of a cuDNN with all known facts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.facts import Target
from cudnn_ct.graph import layouts
from cudnn_ct.graph.operations import Graph
from cudnn_ct.ops.graph.lower import lowered

TARGET = Target(91900)


def rejection(message: str) -> AbstractContextManager[Any]:
    """Expect that a block is rejected with a message; an empty one expects no error."""
    return pytest.raises(NotSupportedError, match=message) if message else nullcontext()


def check_layouts(graph: Graph, rejected: str = "") -> None:
    with rejection(rejected):
        layouts.check_layouts(graph, TARGET)


def check_built(build: Callable[[ct.Graph], Any], rejected: str = "") -> None:
    """Build, lower and check a graph whose outputs a function returns."""
    with rejection(rejected):
        g = ct.Graph()
        outputs = build(g)
        problem = g.define(*(outputs if isinstance(outputs, tuple) else (outputs,)))
        layouts.check_layouts(lowered(problem), TARGET)
