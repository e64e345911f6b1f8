"""Aggregation and attention of graphs by the fake cuDNN, by the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct._bindings.enums import GnnActivationOp, GnnAggOp
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.specs import TensorSpec

from .host import BY_CODE, view

_NAMES = {"linear": "identity", "scalar": "scale"}
SINGLE = DTYPES["float32"].code


class Neighbours:
    """A part of the fake: functions that take a stream and the description of a graph."""

    def _rows(self: Any, pointer: Any, shape: Any, code: int) -> np.ndarray | None:
        """Return the contiguous array at a pointer, which must be aligned; None for a null pointer."""
        if not pointer:
            return None
        assert not pointer % 16, hex(pointer)
        strides = TensorSpec.packed(shape, "float32").strides
        return view(self.host, pointer, tuple(shape), strides, BY_CODE[code].numpy)

    def _columns_of(self: Any, graph: Any) -> tuple[Any, dict[str, np.ndarray | None]]:
        g = graph.contents
        assert min(g.nSrcNodes, g.nDstNodes, g.nIndices) > 0
        arrays = {
            "offsets": self._rows(g.cscOffsets, (g.nDstNodes + 1,), g.idxType),
            "indices": self._rows(g.cscIndices, (g.nIndices,), g.idxType),
            "order": self._rows(g.mapCscToCoo, (g.nIndices,), g.idxType),
        }
        assert not g.mapRevToCoo
        assert not g.cscRevOffsets
        return g, arrays

    def cudnnGnnAggSimpleForward(self: Any, stream: Any, graph: Any, *arguments: Any) -> int:
        x, edges, concat, y, positions, *columns, code, op = arguments
        self.host.check_stream(stream or 0)
        g, arrays = self._columns_of(graph)
        rows = (g.nSrcNodes, g.nIndices, g.nDstNodes)
        shapes = zip(rows, columns, strict=True)
        for name, pointer, shape in zip(("x", "edges", "concat"), (x, edges, concat), shapes, strict=True):
            assert bool(pointer) == bool(shape[1])
            arrays[name] = self._wide(pointer, shape, code)
        found = ct.reference.graph_aggregate(**arrays, op=GnnAggOp(op).name.lower())
        self._rows(y, (g.nDstNodes, sum(columns)), code)[...] = found.y
        assert bool(positions) == (found.positions is not None)
        if positions:
            self._rows(positions, (g.nDstNodes, sum(columns[:2])), g.idxType)[...] = found.positions
        return 0

    def cudnnGnnAggSimpleBackward(self: Any, stream: Any, graph: Any, *arguments: Any) -> int:
        dy, positions, *gradients, node, edge, concat, code, op = arguments
        self.host.check_stream(stream or 0)
        g, arrays = self._columns_of(graph)
        arrays["dy"] = self._wide(dy, (g.nDstNodes, node + edge + concat), code)
        arrays["positions"] = self._rows(positions, (g.nDstNodes, node + edge), g.idxType)
        shapes = ((g.nSrcNodes, node), (g.nIndices, edge), (g.nDstNodes, concat))
        found = ct.reference.graph_aggregate_backward(
            **arrays, x_shape=shapes[0], edges_shape=shapes[1], op=GnnAggOp(op).name.lower()
        )
        for pointer, shape, values in zip(gradients, shapes, found, strict=True):
            assert bool(pointer) == bool(shape[1])
            if pointer:
                memory = self._rows(pointer, shape, code)
                memory += values.astype(memory.dtype)  # cuDNN adds to what is there
        return 0

    def cudnnGnnMhaGatV2Forward(self: Any, stream: Any, graph: Any, *arguments: Any) -> int:
        x, target, edges, w, mask, y, scores, activated, features, params, code = arguments
        self.host.check_stream(stream or 0)
        g, arrays = self._columns_of(graph)
        arrays |= self._attended(g, params, features, code, x, target, edges, w, mask)
        keywords = _keywords(params)
        found = ct.reference.graph_attention(**arrays, **keywords)
        for pointer, values, kind in zip((y, scores, activated), found, (code, SINGLE, code), strict=True):
            self._rows(pointer, values.shape, kind)[...] = values
        return 0

    def cudnnGnnMhaGatV2Backward(self: Any, stream: Any, graph: Any, *arguments: Any) -> int:
        dy, x, target, edges, w, scores, activated, mask, dattention, *written = arguments[:-4]
        features, params, code, wide = arguments[-4:]
        self.host.check_stream(stream or 0)
        g, arrays = self._columns_of(graph)
        arrays |= self._attended(g, params, features, code, x, target, edges, w, mask)
        keywords, per_head = _keywords(params), (2, params.contents.numHeads, g.nIndices)
        columns = features if keywords["concat"] else features // keywords["heads"]
        arrays["dy"] = self._wide(dy, (g.nDstNodes, columns), code)
        arrays["scores"] = self._wide(scores, per_head, SINGLE)
        arrays["activated"] = self._wide(activated, (g.nIndices, features), code)
        dx, dtarget, dedges, dw, dscores, *workspaces = written
        assert (dattention, *workspaces) == (None, None, None)
        assert bool(edges) == bool(dedges)
        self._rows(dscores, per_head, SINGLE)[...] = np.nan
        found = ct.reference.graph_attention_backward(**arrays, **keywords)
        for pointer, values in zip((dx, dtarget, dw, dedges), found, strict=True):
            if pointer:
                self._rows(pointer, values.shape, wide)[...] = values
        return 0

    def _wide(self: Any, pointer: Any, shape: Any, code: int) -> np.ndarray | None:
        array = self._rows(pointer, shape, code)
        return None if array is None else array.astype(np.float64)

    def _attended(
        self: Any, g: Any, params: Any, features: int, code: int, *pointers: Any
    ) -> dict[str, np.ndarray | None]:
        x, target, edges, w, mask = pointers
        heads = params.contents.numHeads
        single = self._rows(mask, (heads, g.nIndices), SINGLE)
        return {
            "x": self._wide(x, (g.nSrcNodes, features), code),
            "target": self._wide(target, (g.nDstNodes, features), code),
            "edges": self._wide(edges, (g.nIndices, features), code),
            "w": self._wide(w, (features,), code),
            "mask": single,
        }


def _keywords(params: Any) -> dict[str, Any]:
    p = params.contents
    name = GnnActivationOp(p.activation).name.lower()
    return {
        "heads": p.numHeads,
        "concat": bool(p.concatHeads),
        "activation": _NAMES.get(name, name),
        "coefficient": p.activationAlpha,
    }
