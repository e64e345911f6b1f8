"""Nodes of the fake's graphs that normalise rows: layer, RMS and adaptive layer normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import BackendNormFwdPhase, BackendNormMode

FORWARD, BACKWARD = "OPERATION_NORM_FWD_", "OPERATION_NORM_BWD_"


class NormNodes:
    """A part of the fake's graphs, computed in float64.

    With ``one_pass_norms``, layer norms compute the variance as cuDNN 9.27 does: as the mean of
    squares minus the square of the mean, in float32.
    """

    one_pass_norms = False

    def _normalises_computed_rows(self: Any, graph: dict[str, Any]) -> bool:
        """Whether a norm reads rows that the graph computes, of a length that no engine takes then."""
        nodes = map(self._attributes, graph["attributes"]["OPERATIONGRAPH_OPS"])
        given = [self._attributes(node[f"{FORWARD}XDESC"][0]) for node in nodes if f"{FORWARD}XDESC" in node]
        return any(
            x.get("TENSOR_IS_VIRTUAL", [False])[0] and max(x["TENSOR_DIMENSIONS"][1:]) % 64 for x in given
        )

    def _norm_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        forward = f"{FORWARD}MODE" in node
        prefix = FORWARD if forward else BACKWARD
        found = {name.removeprefix(prefix): value[0] for name, value in node.items()}
        mode = BackendNormMode(found["MODE"]).name
        shapes = {
            name: tuple(self._attributes(found[name])["TENSOR_DIMENSIONS"])
            for name in found
            if name.endswith("DESC")
        }
        axis = 2 if mode == "ADA_LAYER_NORM" else 1
        x = shapes["XDESC"]
        kept = tuple(1 if at == axis else n for at, n in enumerate(x))
        one = tuple(n if at == axis or (at == 0 and axis == 2) else 1 for at, n in enumerate(x))
        for name, shape in shapes.items():
            if name in ("MEAN_DESC", "INV_VARIANCE_DESC"):
                assert shape == kept, f"{name} is {shape} for x of {x}"
            elif name in ("SCALE_DESC", "BIAS_DESC", "DSCALE_DESC", "DBIAS_DESC"):
                assert shape == one, f"{name} is {shape} for x of {x}"
            elif name != "EPSILON_DESC":
                assert shape == x, f"{name} is {shape} for x of {x}"
        compute = self._norm_forward if forward else self._norm_backward
        with np.errstate(all="ignore"):
            compute(mode, found, axis, tensors)

    def _norm_forward(self: Any, mode: str, found: dict[str, Any], axis: int, tensors: Any) -> None:
        x, epsilon = (self._read(found[f"{name}DESC"], *tensors) for name in ("X", "EPSILON_"))
        scale = self._read(found["SCALE_DESC"], *tensors) if "SCALE_DESC" in found else 1
        training = BackendNormFwdPhase(found["PHASE"]).name == "TRAINING"
        mean = x.mean(axis, keepdims=True) * (mode != "RMS_NORM")
        variance = ((x - mean) ** 2).mean(axis, keepdims=True)
        if self.one_pass_norms and mode == "LAYER_NORM":
            single = x.astype(np.float32)
            square = single.mean(axis, keepdims=True) ** 2
            variance = (single * single).mean(axis, keepdims=True) - square
        invstd = 1 / np.sqrt(variance + epsilon)
        bias = self._read(found["BIAS_DESC"], *tensors) if "BIAS_DESC" in found else 0
        self._write(found["YDESC"], (x - mean) * invstd * scale + bias, *tensors)
        assert training == ("INV_VARIANCE_DESC" in found)
        assert (training and mode != "RMS_NORM") == ("MEAN_DESC" in found)
        for name, values in (("MEAN_DESC", mean), ("INV_VARIANCE_DESC", invstd)):
            if name in found:
                self._write(found[name], values, *tensors)

    def _norm_backward(self: Any, mode: str, found: dict[str, Any], axis: int, tensors: Any) -> None:
        names = ("X", "DY", "SCALE_", "INV_VARIANCE_")
        x, dy, scale, invstd = (self._read(found[f"{name}DESC"], *tensors) for name in names)
        centred = mode != "RMS_NORM"
        assert centred == ("MEAN_DESC" in found)
        mean = self._read(found["MEAN_DESC"], *tensors) if centred else 0
        normal, inner = (x - mean) * invstd, dy * scale
        centre = inner.mean(axis, keepdims=True) * centred
        dx = invstd * (inner - centre - normal * (inner * normal).mean(axis, keepdims=True))
        self._write(found["DXDESC"], dx, *tensors)
        for name, terms in (("DSCALE_DESC", dy * normal), ("DBIAS_DESC", dy)):
            if name in found:
                self._write(found[name], terms.sum(axis - 1, keepdims=True), *tensors)
