"""The descriptions of GPUs that the package has, and the sources of their numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cudnn_ct import _files
from cudnn_ct.graph.gpus import description_of, gpu_names, is_derived
from cudnn_ct.graph.offline import name_of_description

LATER = {"memoryBusWidth", "smCountOrigin", "oversizedSharedMemoryPerBlock"}  # keys that 9.19 does not write
DERIVED = [name for name in gpu_names() if is_derived(name)]


def sources_of(name: str) -> dict[str, str]:
    """Return where each number of a derived description comes from."""
    table: dict[str, Any] = json.loads(_files.resource("_gpus.json"))
    row, limits, assumed = table["derived"][name], table["capabilities"], table["assumed"]
    limited = (*limits["all"], *limits[str(row["deviceVer"])], "deviceVer")
    return {
        **dict.fromkeys(assumed["values"], assumed["source"]),
        **dict.fromkeys(limited, limits["source"]),
        **row["sources"],
    }


def test_only_the_h200_was_recorded() -> None:
    assert set(gpu_names()) - set(DERIVED) == {"h200"}
    assert {750, 800, 860, 890, 900, 1000, 1200} == {description_of(name)["deviceVer"] for name in DERIVED}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_description_has_the_keys_of_the_recorded_one_and_a_source_for_each(name: str) -> None:
    found: dict[str, Any] = description_of(name)
    assert set(found) == {*description_of("h200"), *LATER}
    sources = sources_of(name)
    assert set(sources) == set(found)
    own = (
        "multiProcessorCount",
        "l2CacheSize",
        "totalGlobalMem",
        "maxSharedMemoryPerBlockOptin",
        "deviceName",
    )
    assert all("https://" in sources[key] for key in own)
    for key, value in description_of("h200").items():
        assert type(found[key]) is type(value), key


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_description_is_consistent(name: str) -> None:
    found = description_of(name)
    shared = found["maxSharedMemoryPerBlockOptin"] + found["reservedSharedMemoryPerBlock"]
    assert shared % 1024 == 0
    assert found["maxSharedMemoryPerBlock"] < shared <= 228 * 1024
    assert found["maxThreadsPerBlock"] <= found["maxThreadsPerSM"]
    assert found["totalGlobalMem"] > 10**10
    assert name_of_description(found).endswith(f"{found['deviceVer'] // 10 / 10}")


def test_descriptions_are_copies() -> None:
    description_of("a100")["deviceName"] = "changed"
    assert description_of("a100")["deviceName"] == "NVIDIA A100-SXM4-80GB"
