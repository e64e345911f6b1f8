"""The graph API of the fake cuDNN: one engine for convolutions and pointwise operations after them.

A test switches it on with ``fake.graphs = True``; until then every call of it is not supported.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from cudnn_ct._bindings.enums import BackendAttributeType, BackendDescriptorType
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.graph.attributes import element, kind

from .host import view
from .pointwise import ELU, IDENTITY, RELU, SIGMOID, TANH, activate

NOT_SUPPORTED = 3000

ENGINE = 52  # the number of the engine that cuDNN 9.19 compiles at run time for such graphs
COMPILED = 0  # CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION

_MODES = {
    "identity": IDENTITY,
    "relu_fwd": RELU,
    "sigmoid_fwd": SIGMOID,
    "tanh_fwd": TANH,
    "elu_fwd": ELU,
}
_KINDS = {int(one): one.name.removesuffix("_DESCRIPTOR").lower() for one in BackendDescriptorType}


class Tensor(NamedTuple):
    """A tensor of a graph, as its descriptor has it."""

    uid: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    virtual: bool


class Backend:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    graphs = False

    def cudnnBackendCreateDescriptor(self: Any, code: int, out: Any) -> int:
        if not self.graphs:
            return NOT_SUPPORTED
        self._create(out, "backend", name=_KINDS[code], values={})
        return 0

    def cudnnBackendDestroyDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnBackendFinalize(self: Any, descriptor: Any) -> None:
        self._get(descriptor, "backend")

    def cudnnBackendSetAttribute(
        self: Any, descriptor: Any, attribute: int, code: int, count: int, elements: int
    ) -> None:
        state = self._get(descriptor, "backend")
        state["values"][_short(state, attribute)] = _read(code, count, elements)

    def cudnnBackendGetAttribute(
        self: Any, descriptor: Any, attribute: int, code: int, room: int, count: Any, elements: int
    ) -> int:
        state = self._get(descriptor, "backend")
        name = _short(state, attribute)
        if name in ("results", "engine"):  # descriptors of the caller, which are filled in
            count[0] = 1
            for address in _read(code, room, elements) if room else ():
                self._get(address, "backend")["values"] |= {"global_index": [ENGINE], "engine": [address]}
            return 0
        answers = {"workspace_size": [0], "global_index": [ENGINE], "behavior_note": [COMPILED]}
        found = answers.get(name, [])
        count[0] = len(found)
        if room:
            ctype = element(BackendAttributeType(code).name).ctype
            ctypes.memmove(elements, (ctype * len(found))(*found), len(found) * ctypes.sizeof(ctype))
        return 0

    def cudnnBackendExecute(self: Any, handle: Any, plan: Any, pack: Any) -> None:
        self._get(handle, "handle")
        config = self._values(self._values(plan)["engine_config"][0])
        graph = self._values(self._values(config["engine"][0])["operation_graph"][0])
        given = self._values(pack)
        memory = dict(zip(given["unique_ids"], given["data_pointers"], strict=True))
        between: dict[int, np.ndarray] = {}
        for operation in graph["ops"]:
            name, values = self._get(operation, "backend")["name"], self._values(operation)
            run = self._convolve_node if name == "operation_convolution_forward" else self._pointwise_node
            run(values, memory, between)

    def _convolve_node(self: Any, values: Any, memory: dict[int, int], between: dict[int, Any]) -> None:
        from .cudnn import _slide

        conv = self._values(values["conv_desc"][0])
        x, w, y = (self._tensor(values[name][0]) for name in ("x", "w", "y"))
        arrays = {
            "x": self._elements(x, memory, between),
            "w": self._elements(w, memory, between),
            "y": np.zeros(y.shape),
        }
        layer = {
            "padding": conv["pre_paddings"],
            "stride": conv["filter_strides"],
            "dilation": conv["dilations"],
            "groups": x.shape[1] // w.shape[1],
            "flip": conv["conv_mode"] == [0],
        }
        _slide("y", arrays, layer)
        self._store(y, arrays["y"], memory, between)

    def _pointwise_node(self: Any, values: Any, memory: dict[int, int], between: dict[int, Any]) -> None:
        """Read every tensor of the result's shape with the strides of the result, as engine 52 does."""
        parameters = self._values(values["pw_descriptor"][0])
        mode = element("POINTWISE_MODE").decode(parameters["mode"][0])
        y = self._tensor(values["ydesc"][0])

        def operand(name: str, factor: str) -> Any:
            tensor = self._tensor(values[name][0])
            if tensor.shape == y.shape:
                tensor = tensor._replace(strides=y.strides)
            return values.get(factor, [1.0])[0] * self._elements(tensor, memory, between)

        result = operand("xdesc", "alpha1")
        if mode == "add":
            result = result + operand("bdesc", "alpha2")
        else:
            result = activate(_MODES[mode], parameters.get("elu_alpha", [0.0])[0], result)
        self._store(y, result, memory, between)

    def _values(self: Any, pointer: Any) -> dict[str, Any]:
        values: dict[str, Any] = self._get(pointer, "backend")["values"]
        return values

    def _tensor(self: Any, pointer: Any) -> Tensor:
        values = self._values(pointer)
        dtype = next(row for row in DTYPES.values() if row.code == values["data_type"][0])
        shape, strides = tuple(values["dimensions"]), tuple(values["strides"])
        virtual = bool(values.get("is_virtual", [False])[0])
        return Tensor(values["unique_id"][0], shape, strides, dtype.numpy, virtual)

    def _elements(self: Any, tensor: Tensor, memory: dict[int, int], between: dict[int, Any]) -> Any:
        if tensor.virtual:
            return between[tensor.uid]
        return self._view(tensor, memory).astype(np.float64)

    def _store(
        self: Any, tensor: Tensor, values: Any, memory: dict[int, int], between: dict[int, Any]
    ) -> None:
        if tensor.virtual:
            between[tensor.uid] = values
        else:
            self._view(tensor, memory)[...] = values.astype(tensor.dtype)

    def _view(self: Any, tensor: Tensor, memory: dict[int, int]) -> Any:
        return view(self.host, memory[tensor.uid], tensor.shape, tensor.strides, tensor.dtype)


def _short(state: dict[str, Any], code: int) -> str:
    """The short name of an attribute of a descriptor."""
    attributes = kind(state["name"]).attributes
    return next(name for name, attribute in attributes.items() if attribute.code == code)


def _read(code: int, count: int, elements: int) -> list[Any]:
    """Elements of an attribute; pointers as integers."""
    ctype = element(BackendAttributeType(code).name).ctype
    plain = ctypes.c_void_p if issubclass(ctype, ctypes._Pointer) else ctype
    return list((plain * count).from_address(elements))
