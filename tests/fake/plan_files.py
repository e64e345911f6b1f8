"""The JSON of the fake's execution plans: the attributes of all descriptors that a plan needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cudnn_ct._bindings.enums import DataType

BAD_PARAM = 2000
VERSION = 91900
_CONFIG = "EXECUTION_PLAN_ENGINE_CONFIG"


def write(plan: dict[str, Any], attributes_of: Callable[[Any], dict[str, Any]]) -> list[bytes]:
    """Return the characters of a plan's JSON, with the fields of cuDNN's and the plan as its machine code."""

    def tree(descriptor: Any) -> dict[str, Any]:
        found = attributes_of(descriptor)
        inner = set(found.get("descriptors", ()))
        return {
            name: list(map(tree, values)) if name in inner else values
            for name, values in found.items()
            if not name.endswith("_HANDLE") and name != "descriptors"
        }

    (config,) = map(tree, plan[_CONFIG])
    (engine,) = config["ENGINECFG_ENGINE"]
    tensors: dict[int, Any] = {}
    _collect(engine, tensors)
    text = {
        "cudnnVersion": VERSION,
        "operationGraph": {"tensors": list(tensors.values())},
        "engine": {"engineId": engine["ENGINE_GLOBAL_INDEX"][0], "payload": config},
    }
    return characters(text)


def characters(value: Any) -> list[bytes]:
    """Return the characters of a value as JSON."""
    return [bytes([byte]) for byte in json.dumps(value).encode()]


def read_kernels(cache: dict[str, Any]) -> int:
    """Set the kernels of a cache from its JSON; return cuDNN's status."""
    try:
        cache["compiled"] = list(map(int, json.loads(b"".join(cache["KERNEL_CACHE_JSON_REPRESENTATION"]))))
    except (ValueError, TypeError):
        return BAD_PARAM
    return 0


def read(plan: dict[str, Any]) -> int:
    """Set the attributes of a plan from its JSON; return cuDNN's status."""
    text = b"".join(plan["EXECUTION_PLAN_JSON_REPRESENTATION"])
    try:
        plan[_CONFIG] = [json.loads(text)["engine"]["payload"]]
    except (ValueError, KeyError, TypeError):
        return BAD_PARAM
    return 0


def _collect(found: Any, tensors: dict[int, Any]) -> None:
    if isinstance(found, list):
        for one in found:
            _collect(one, tensors)
    elif isinstance(found, dict):
        if "TENSOR_UNIQUE_ID" in found:
            (uid,) = found["TENSOR_UNIQUE_ID"]
            tensors[uid] = {
                "name": str(uid),
                "dim": found["TENSOR_DIMENSIONS"],
                "stride": found["TENSOR_STRIDES"],
                "dataType": f"CUDNN_DATA_{DataType(found['TENSOR_DATA_TYPE'][0]).name}",
                "isVirtual": found.get("TENSOR_IS_VIRTUAL", [False])[0],
            }
        for one in found.values():
            _collect(one, tensors)
