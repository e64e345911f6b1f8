"""Native graphs checked against the facts about them, of a cuDNN with all known facts."""

from __future__ import annotations

from cudnn_ct.facts import Target
from cudnn_ct.graph import layouts
from cudnn_ct.graph.operations import Graph

TARGET = Target(91900)


def check_layouts(graph: Graph) -> None:
    layouts.check_layouts(graph, TARGET)
