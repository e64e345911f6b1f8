"""The graph API of the fake cuDNN: one engine for convolutions and the pointwise nodes behind them."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import (
    BackendAttributeName,
    BackendAttributeType,
    BackendBehaviorNote,
    BackendDescriptorType,
    PointwiseMode,
)
from cudnn_ct._bindings.types import cudnnFraction_t
from cudnn_ct.shapes.specs import TensorSpec

from . import plan_files
from .attention_graphs import AttentionRun, is_attention
from .convolution import slide
from .graph_nodes import OTHER_MODES, MoreNodes
from .graph_norms import NormNodes
from .host import BY_CODE, NOT_SUPPORTED, view
from .pointwise import CLIPPED_RELU, ELU, IDENTITY, PROPAGATE, RELU, SIGMOID, SWISH, TANH, activate

JSON = "EXECUTION_PLAN_JSON_REPRESENTATION"
KERNELS = "KERNEL_CACHE_JSON_REPRESENTATION"
DYNAMIC = "OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED"

_ELEMENTS: dict[str, Any] = {
    "INT64": ctypes.c_int64,
    "BOOLEAN": ctypes.c_bool,
    "FLOAT": ctypes.c_float,
    "DOUBLE": ctypes.c_double,
    "CHAR": ctypes.c_char,
    "FRACTION": cudnnFraction_t,
    **dict.fromkeys(("VOID_PTR", "HANDLE", "BACKEND_DESCRIPTOR"), ctypes.c_void_p),
}  # and C ints
_DIRECTIONS = {
    "OPERATION_CONVOLUTION_FORWARD": ("X", "W", "Y"),
    "OPERATION_CONVOLUTION_BWD_DATA": ("DX", "W", "DY"),
    "OPERATION_CONVOLUTION_BWD_FILTER": ("X", "DW", "DY"),
}
_ACTIVATIONS = {
    "RELU_FWD": RELU,
    "TANH_FWD": TANH,
    "SIGMOID_FWD": SIGMOID,
    "ELU_FWD": ELU,
    "SWISH_FWD": SWISH,
    "IDENTITY": IDENTITY,
}


# Kinds of nodes that have engines even without ``engines``: no legacy call computes them.
_ONLY_GRAPHS = (
    *("OPERATION_NORM_", "OPERATION_MATMUL_", "OPERATION_GENSTATS_", "OPERATION_BN_"),
    "OPERATION_POINTWISE_TDESC",  # of a selection
)


class Graphs(NormNodes, MoreNodes):
    """A part of the fake. Without ``engines``, which is the default, it has no engine for convolutions.

    ``engine_number`` is the number of its engine, ``engine_workspace`` the number of bytes that it needs.
    """

    engines = False
    engine_number = 0
    engine_workspace = 0
    second_engine: int | None = None
    wrong_engines: frozenset[int] = frozenset()  # these add 1, or ``errors``, to results of several nodes
    errors: dict[int, float] = {}  # noqa: RUF012 - replaced, never changed
    compiled_engines = False  # whether engines are compiled at run time
    compilations = (
        0  # plans that were made of an engine, not read from JSON or with a cache that has its kernel
    )
    heuristic_queries = 0
    varying = False  # whether the last bits of results differ from run to run
    error = 0.0  # what the running engine adds to its results
    dynamic_engines = True  # whether engines support dynamic graphs
    one_channel = True  # whether engines compute elementwise graphs of images with one channel
    counts_kernels = True  # whether kernel caches can be stored, as from cuDNN 9.27 on

    def cudnnBackendCreateDescriptor(self: Any, kind: int, out: Any) -> int:
        name = BackendDescriptorType(kind).name
        if name == "DEVICEPROP_DESCRIPTOR" and not self.engines:  # as before cuDNN 9.8
            return NOT_SUPPORTED
        self._create(out, "backend", name=name, attributes={})
        return 0

    def cudnnBackendDestroyDescriptor(self: Any, descriptor: Any) -> None:
        self._get(descriptor, "backend")
        self._destroy(descriptor)

    def cudnnBackendSetAttribute(
        self: Any, descriptor: Any, name: int, element: int, count: int, elements: int
    ) -> None:
        array = (_element(element) * count).from_address(elements)
        state, wanted = self._get(descriptor, "backend"), BackendAttributeName(name).name
        fractions = BackendAttributeType(element).name == "FRACTION"  # structs, in the memory of the caller
        values = [Fraction(one.numerator, one.denominator) for one in array] if fractions else list(array)
        state["attributes"][wanted] = values
        if BackendAttributeType(element).name == "BACKEND_DESCRIPTOR":
            state["attributes"].setdefault("descriptors", []).append(wanted)

    def cudnnBackendFinalize(self: Any, descriptor: Any) -> int:
        state = self._get(descriptor, "backend")
        attributes = state["attributes"]
        if state["name"] == "OPERATIONGRAPH_DESCRIPTOR" and not (self.engines or self._only_graphs(state)):
            return NOT_SUPPORTED
        if state["name"] == "OPERATIONGRAPH_DESCRIPTOR" and self._normalises_computed_rows(state):
            return NOT_SUPPORTED
        if state["name"] == "OPERATIONGRAPH_DESCRIPTOR" and not self.one_channel and self._one_channel(state):
            return NOT_SUPPORTED
        if state["name"] == "EXECUTION_PLAN_DESCRIPTOR":
            if JSON in attributes:
                return plan_files.read(attributes)
            self.compilations += self._compiles(attributes)
        if KERNELS in attributes:
            return plan_files.read_kernels(attributes)
        if state["name"] == "ENGINEHEUR_DESCRIPTOR":
            self.heuristic_queries += 1
            graph = self._attributes(attributes["ENGINEHEUR_OPERATION_GRAPH"][0])
            if DYNAMIC in graph and not self.dynamic_engines:
                return NOT_SUPPORTED
        known = (self.engine_number, self.second_engine)
        unknown = state["name"] == "ENGINE_DESCRIPTOR" and attributes["ENGINE_GLOBAL_INDEX"][0] not in known
        return NOT_SUPPORTED if unknown else 0

    def _compiles(self: Any, plan: dict[str, list[Any]]) -> bool:
        """Whether an engine is compiled for a plan: a kernel cache has that of an earlier plan."""
        engine = self._attributes(
            self._attributes(plan["EXECUTION_PLAN_ENGINE_CONFIG"][0])["ENGINECFG_ENGINE"][0]
        )
        dynamic = DYNAMIC in self._attributes(engine["ENGINE_OPERATION_GRAPH"][0])
        assert dynamic == ("EXECUTION_PLAN_KERNEL_CACHE" in plan)
        if not dynamic:
            return True
        known = self._attributes(plan["EXECUTION_PLAN_KERNEL_CACHE"][0]).setdefault("compiled", [])
        number = engine["ENGINE_GLOBAL_INDEX"][0]
        new = number not in known
        known += [number] if new else []
        return new

    def cudnnBackendGetAttribute(
        self: Any, descriptor: Any, name: int, element: int, room: int, count: Any, elements: int | None
    ) -> int:
        attributes = self._get(descriptor, "backend")["attributes"]
        wanted = BackendAttributeName(name).name
        if wanted == "KERNEL_CACHE_ENTRY_COUNT" and not self.counts_kernels:
            return NOT_SUPPORTED
        children = ("ENGINEHEUR_RESULTS", "ENGINECFG_ENGINE")
        if wanted in children:
            numbers = [self.engine_number]
            if wanted == "ENGINECFG_ENGINE":
                numbers = attributes.get("number", numbers)
            elif self.second_engine is not None:
                numbers.append(self.second_engine)
            count[0] = len(numbers)
            for place in range(min(room, len(numbers))):
                blank = self._get((ctypes.c_void_p * room).from_address(elements)[place], "backend")
                key = "number" if wanted == "ENGINEHEUR_RESULTS" else "ENGINE_GLOBAL_INDEX"
                blank["attributes"][key] = [numbers[place]]
                graph = attributes.get("ENGINEHEUR_OPERATION_GRAPH") or attributes.get("graph")
                if graph:
                    blank["attributes"]["graph"] = [self._attributes(graph[0])]
            return 0
        sizes = ("ENGINECFG_WORKSPACE_SIZE", "EXECUTION_PLAN_WORKSPACE_SIZE")
        values = [self.engine_workspace] if wanted in sizes else attributes.get(wanted, [])
        values = [1] if wanted == "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT" else values
        compiled = wanted == "ENGINE_BEHAVIOR_NOTE" and (self.compiled_engines or self._has_beta(attributes))
        if compiled:
            values = [int(BackendBehaviorNote.RUNTIME_COMPILATION)]
        if wanted == JSON:
            values = plan_files.write(attributes, self._attributes)
        if wanted == "KERNEL_CACHE_ENTRY_COUNT":
            values = [len(attributes["compiled"])]
        if wanted == KERNELS:
            values = plan_files.characters(attributes["compiled"])
        count[0] = len(values)
        if room and values:
            (_element(element) * len(values)).from_address(elements)[:] = values
        return 0

    def _has_beta(self: Any, engine: dict[str, Any]) -> bool:
        """Whether a graph has a swish with a beta: only engines that are compiled at run time obey it."""
        (graph,) = engine.get("ENGINE_OPERATION_GRAPH") or engine["graph"]
        nodes = map(self._attributes, self._attributes(graph)["OPERATIONGRAPH_OPS"])
        functions = [node.get("OPERATION_POINTWISE_PW_DESCRIPTOR") for node in nodes]
        return any(f is not None and "POINTWISE_SWISH_BETA" in self._attributes(f[0]) for f in functions)

    def cudnnBackendExecute(self: Any, handle: Any, plan: Any, pack: Any) -> None:
        """Compute the nodes of the plan's graph, in their order."""
        self._get(handle, "handle")
        given = self._attributes(pack)
        pointers = [pointer or 0 for pointer in given["VARIANT_PACK_DATA_POINTERS"]]
        workspace = given["VARIANT_PACK_WORKSPACE"][0] or 0
        if self.engine_workspace:
            view(self.host, workspace, (self.engine_workspace,), (1,), np.dtype(np.uint8))[:] = 0xEE
        memory = dict(zip(given["VARIANT_PACK_UNIQUE_IDS"], pointers, strict=True))
        values: dict[int, np.ndarray] = {}
        config = self._attributes(self._attributes(plan)["EXECUTION_PLAN_ENGINE_CONFIG"][0])
        engine = self._attributes(config["ENGINECFG_ENGINE"][0])
        (graph,) = engine["ENGINE_OPERATION_GRAPH"]
        number = engine["ENGINE_GLOBAL_INDEX"][0]
        self.executed.append(number)
        operations = [self._attributes(one) for one in self._attributes(graph)["OPERATIONGRAPH_OPS"]]
        wrong = number in self.wrong_engines and len(operations) > 1
        self.error = self.errors.get(number, 1.0) if wrong else 0.0
        if self.varying:
            self.error += 1e-4 * (len(self.executed) % 7)
        by_value = self._values_of(operations)
        on_device = [pointer for uid, pointer in memory.items() if uid not in by_value]
        bad = [hex(pointer) for pointer in (*on_device, workspace) if pointer % 16]
        assert not bad, f"misaligned operands of a graph: {bad}"
        if is_attention(operations):
            AttentionRun(self, memory).run(operations)
            return
        for attributes in operations:
            if "OPERATION_POINTWISE_XDESC" in attributes:
                self._pointwise_node(attributes, memory, values)
            elif any(name.startswith("OPERATION_NORM_") for name in attributes):
                if not self._image_norm_node(attributes, memory, values):
                    self._norm_node(attributes, memory, values)
            elif not self._other_node(attributes, memory, values):
                self._convolution_node(attributes, memory, values)

    def _only_graphs(self: Any, graph: dict[str, Any]) -> bool:
        """Whether a graph has a node that no legacy call computes."""
        nodes = [*map(self._attributes, graph["attributes"]["OPERATIONGRAPH_OPS"])]
        names = [name for node in nodes for name in node]
        fused = any(self._scales(node) or self._reads_float8(node) for node in nodes)
        if fused and any(name.startswith("OPERATION_CONVOLUTION_") for name in names):
            return True
        return any(map(self._reads_int32, nodes)) or any(name.startswith(_ONLY_GRAPHS) for name in names)

    def _one_channel(self: Any, graph: dict[str, Any]) -> bool:
        """Whether a graph has only elementwise nodes, and images with one channel."""
        nodes = [*map(self._attributes, graph["attributes"]["OPERATIONGRAPH_OPS"])]
        results = [node.get("OPERATION_POINTWISE_YDESC") for node in nodes]
        shapes = [one and self._attributes(one[0])["TENSOR_DIMENSIONS"] for one in results]
        return all(shape and len(shape) > 3 and shape[1] == 1 for shape in shapes)

    def _reads_int32(self: Any, node: dict[str, list[Any]]) -> bool:
        """Whether a node is an elementwise operation on int32 numbers."""
        numbers = node.get("OPERATION_POINTWISE_XDESC")
        return numbers is not None and self._attributes(numbers[0])["TENSOR_DATA_TYPE"] == [4]

    def _scales(self: Any, node: dict[str, list[Any]]) -> bool:
        """Whether a node multiplies two tensors, such as a convolution and a factor for each channel."""
        if "OPERATION_POINTWISE_PW_DESCRIPTOR" not in node:
            return False
        function = self._attributes(node["OPERATION_POINTWISE_PW_DESCRIPTOR"][0])
        return PointwiseMode(function["POINTWISE_MODE"][0]) == PointwiseMode.MUL

    def _reads_float8(self: Any, node: dict[str, list[Any]]) -> bool:
        """Whether a node is a convolution of float8 images."""
        images = node.get("OPERATION_CONVOLUTION_FORWARD_X")
        if images is None:
            return False
        return BY_CODE[self._attributes(images[0])["TENSOR_DATA_TYPE"][0]].name.startswith("float8")

    def _values_of(self: Any, operations: list[dict[str, list[Any]]]) -> set[int]:
        """Return the uids of tensors that are passed by value."""
        tensors = [
            self._attributes(value[0])
            for attributes in operations
            for name, value in attributes.items()
            if name.endswith("DESC") and isinstance(value[0], int | dict)
        ]
        return {one["TENSOR_UNIQUE_ID"][0] for one in tensors if one.get("TENSOR_IS_BY_VALUE", [False])[0]}

    def _attributes(self: Any, descriptor: Any) -> dict[str, list[Any]]:
        """The attributes of a descriptor, or of one that was read from the JSON of a plan."""
        if isinstance(descriptor, dict):
            return descriptor
        found: dict[str, list[Any]] = self._get(descriptor, "backend")["attributes"]
        return found

    def _read(self: Any, tensor: int, memory: dict[int, int], values: dict[int, np.ndarray]) -> np.ndarray:
        """The elements of a tensor in float64: written by a node before, or in memory."""
        found = self._attributes(tensor)
        (uid,) = found["TENSOR_UNIQUE_ID"]
        if uid in values:
            return values[uid]
        if found.get("TENSOR_IS_BY_VALUE", [False])[0]:
            dtype = BY_CODE[found["TENSOR_DATA_TYPE"][0]].numpy
            raw = ctypes.string_at(memory[uid], dtype.itemsize)
            return np.frombuffer(raw, dtype).astype(np.float64).reshape(found["TENSOR_DIMENSIONS"])
        return self._array(found, memory[uid]).astype(np.float64)

    def _array(self: Any, tensor: dict[str, list[Any]], pointer: int) -> np.ndarray:
        dtype = BY_CODE[tensor["TENSOR_DATA_TYPE"][0]].numpy
        return view(self.host, pointer, tensor["TENSOR_DIMENSIONS"], tensor["TENSOR_STRIDES"], dtype)

    def _write(
        self: Any, tensor: int, result: np.ndarray, memory: dict[int, int], values: dict[int, np.ndarray]
    ) -> None:
        found = self._attributes(tensor)
        (uid,) = found["TENSOR_UNIQUE_ID"]
        values[uid] = result
        if not found.get("TENSOR_IS_VIRTUAL", [False])[0]:
            target = self._array(found, memory[uid])
            target[...] = (result + self.error).astype(target.dtype)

    def _pointwise_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        """Read operands of the shape of the result with its strides, as engine 52 of cuDNN 9.19 does."""
        written = "OPERATION_POINTWISE_" + ("DXDESC" if "OPERATION_POINTWISE_DXDESC" in node else "YDESC")
        result_of = self._attributes(node[written][0])
        for name in ("OPERATION_POINTWISE_XDESC", "OPERATION_POINTWISE_BDESC", "OPERATION_POINTWISE_DYDESC"):
            found = self._attributes(node[name][0]) if name in node else {}
            if found.get("TENSOR_DIMENSIONS") == result_of["TENSOR_DIMENSIONS"]:
                found["TENSOR_STRIDES"] = result_of["TENSOR_STRIDES"]
        function = self._attributes(node["OPERATION_POINTWISE_PW_DESCRIPTOR"][0])
        mode = PointwiseMode(function["POINTWISE_MODE"][0]).name
        if mode in OTHER_MODES or any(name.startswith("POINTWISE_RELU_LOWER_CLIP") for name in function):
            result = self._other_pointwise(mode, function, node, *tensors)
            self._write(node[written][0], result, *tensors)
            return
        x = node.get("OPERATION_POINTWISE_ALPHA1", [1])[0] * self._read(
            node["OPERATION_POINTWISE_XDESC"][0], *tensors
        )
        if mode in ("ADD", "MUL"):
            b = self._read(node["OPERATION_POINTWISE_BDESC"][0], *tensors)
            b = node.get("OPERATION_POINTWISE_ALPHA2", [1])[0] * b
            with np.errstate(all="ignore"):
                result = x + b if mode == "ADD" else x * b
        else:
            clip = function.get("POINTWISE_RELU_UPPER_CLIP")
            coef = (
                clip or function.get("POINTWISE_ELU_ALPHA") or function.get("POINTWISE_SWISH_BETA") or [1.0]
            )[0]
            state = {"mode": CLIPPED_RELU if clip else _ACTIVATIONS[mode], "coef": coef, "nan": PROPAGATE}
            result = activate(state, x)
        self._write(node[written][0], result, *tensors)

    def _convolution_node(self: Any, node: dict[str, list[Any]], *tensors: Any) -> None:
        kind = next(name for name in _DIRECTIONS if f"{name}_CONV_DESC" in node)
        (convolution,) = node[f"{kind}_CONV_DESC"]
        found = self._attributes(convolution)
        operands = {
            role: node[f"{kind}_{name}"][0] for role, name in zip("xwy", _DIRECTIONS[kind], strict=True)
        }
        result = {"FORWARD": "y", "BWD_DATA": "x", "BWD_FILTER": "w"}[kind.partition("CONVOLUTION_")[2]]
        arrays = {role: self._read(tensor, *tensors) for role, tensor in operands.items() if role != result}
        arrays[result] = np.zeros(self._attributes(operands[result])["TENSOR_DIMENSIONS"])
        layer = {
            "padding": found["CONVOLUTION_PRE_PADDINGS"],
            "stride": found["CONVOLUTION_FILTER_STRIDES"],
            "dilation": found["CONVOLUTION_DILATIONS"],
            "flip": found["CONVOLUTION_CONV_MODE"][0] == 0,
            "groups": arrays["x"].shape[1] // arrays["w"].shape[1],
        }
        slide(result, arrays, layer)
        if self._fused_in_several_layouts(operands):
            arrays[result][...] = np.nan
        self._write(operands[result], arrays[result], *tensors)

    def _fused_in_several_layouts(self: Any, operands: dict[str, int]) -> bool:
        """Engines 4, 7, 52 and 53 of cuDNN 9.19 give wrong sums for these, and take one pixel for NHWC."""
        found = [self._attributes(tensor) for tensor in operands.values()]
        if not any(one.get("TENSOR_IS_VIRTUAL", [False])[0] for one in found):
            return False
        lists = [(one["TENSOR_DIMENSIONS"], one["TENSOR_STRIDES"]) for one in found]
        specs = [TensorSpec(tuple(shape), tuple(strides), "float32") for shape, strides in lists]
        layouts = [set(spec.layouts) for spec in specs]
        if prod(self._attributes(operands["y"])["TENSOR_DIMENSIONS"][2:]) == 1:
            layouts.append({"nhwc"})
        return not set.intersection(*layouts)


def _element(code: int) -> Any:
    return _ELEMENTS.get(BackendAttributeType(code).name, ctypes.c_int)
