"""Compiled plans from the store and from files, on the fakes."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import cudnn_ct as ct
from cudnn_ct import _lib, testing
from cudnn_ct._config import Config
from cudnn_ct.autotune import candidates
from cudnn_ct.cli import main
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import CudnnWarning, NotInitializedError
from cudnn_ct.facts import FactsError
from cudnn_ct.graph import stored
from cudnn_ct.graph.attributes import graph_from_json, graph_to_json
from cudnn_ct.graph.plan_store import PlanStore, StoredPlan, _imported, decode, encode, plan_store
from cudnn_ct.graph.recording import PlanRequest
from cudnn_ct.ops import activation
from cudnn_ct.shapes.specs import ActivationSpec
from tests.layers import several

from .cudnn import FakeCudnn
from .host import Host
from .test_conv import images
from .test_graph_source import clip


@pytest.fixture(autouse=True)
def _compiled_engines(fake: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fake.engines = fake.compiled_engines = True
    monkeypatch.setattr(ct.config, "plan_cache", True)
    monkeypatch.setattr(activation, "MIN_ELEMENTS", 16)
    yield
    _imported.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of compiled plans, which does not exist yet."""
    return tmp_path / "plans.file"


def x_of(rows: int = 2) -> ct.DeviceArray:
    return images(rows, 3, 4, 4)


def forget() -> None:
    """Forget all that a process knows of its calls."""
    testing.reset()


def test_second_process_finds_the_plan_and_the_choice_on_disk(fake: FakeCudnn) -> None:
    clip(x_of())
    assert fake.compilations == 1
    forget()
    fake.calls.clear()
    clip(x_of())
    assert fake.compilations == 1
    created = [args[0] for name, args in fake.calls if name == "cudnnBackendCreateDescriptor"]
    assert len(created) == len(set(created)) == 2  # the plan and its variant pack: no heuristics, no graph
    clip(x_of(3))
    assert fake.compilations == 2


def test_operations_without_candidates_use_stored_plans(fake: FakeCudnn) -> None:
    for _ in range(2):
        y = ct.activation(x_of(), mode="relu")
        np.testing.assert_array_equal(y.numpy(), np.maximum(x_of().numpy(), 0))
        assert fake.compilations == 1
        forget()
    ct.activation(x_of(), mode="elu", coefficient=1)
    assert fake.compilations == 2


def test_engines_that_are_not_compiled_are_not_stored(fake: FakeCudnn) -> None:
    fake.compiled_engines = False
    clip(x_of())
    assert plan_store().entries() == []


def test_autotuning_stores_only_the_fastest_engine(fake: FakeCudnn) -> None:
    fake.second_engine = 3
    clip(x_of(), "autotune")
    plans = [entry for entry in plan_store().entries() if entry.text]
    assert len(plans) == 1
    compilations = fake.compilations
    forget()
    clip(x_of(), "autotune")
    assert fake.compilations == compilations


def change(file: Path, damage: str) -> None:
    content = file.read_bytes()
    if damage == "bit":
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "cut":
        file.write_bytes(content[:-100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "format":
        file.write_bytes(content.replace(b"cudnn_ct plan 1", b"cudnn_ct plan 9", 1))
    elif damage == "writable":
        file.chmod(0o666)
    else:
        (entry,) = decode(content)
        assert isinstance(entry, StoredPlan)
        text = json.loads(entry.text)
        if damage == "version":
            text["cudnnVersion"] = 91800
        elif damage == "gpu":
            text["GPUProfile"] = {"deviceName": "NVIDIA T4", "multiProcessorCount": 40, "deviceVer": 750}
        elif damage == "strides":
            text["operationGraph"]["tensors"][0]["stride"][0] += 1
        elif damage == "engine":
            text["engine"]["engineId"] = 9
        elif damage == "cudnn":
            del text["engine"]["payload"]
        file.write_bytes(encode(entry._replace(text=json.dumps(text).encode())))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("bit", "the hash does not match"),
        ("cut", "the hash does not match"),
        ("empty", "the file is empty"),
        ("format", "the format is 'cudnn_ct plan 9'"),
        ("writable", "is world-writable; run chmod o-w"),
        ("version", "compiled by cuDNN 9.18.0, this is 9.19.0"),
        ("gpu", "compiled for NVIDIA T4, 40 SMs, 7.5, this is"),
        ("strides", "its tensor 1 has shape .* and strides"),
        ("engine", "it has engine 9, expected 0"),
        ("cudnn", "cuDNN cannot load it"),
    ],
)
def test_plans_that_do_not_fit_are_ignored_with_one_line(
    fake: FakeCudnn, on_disk: Path, damage: str, words: str
) -> None:
    ct.activation(x_of())
    (file,) = (on_disk / "plans").glob("*.plan_1")
    change(file, damage)
    forget()
    with pytest.warns(CudnnWarning, match=words) as caught:
        y = ct.activation(x_of())
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    np.testing.assert_array_equal(y.numpy(), np.maximum(x_of().numpy(), 0))
    assert fake.compilations == 2
    if damage != "writable":  # a good plan has replaced it
        forget()
        ct.activation(x_of())
        assert fake.compilations == 2


@pytest.fixture
def gpu(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Compiled kernels hold numbers of their GPU; the function puts another GPU of its kind in its place."""
    plant(kind="stored", operations=["all"], kernels="[", effect="hang", message="it hangs")
    return lambda name: monkeypatch.setattr(streams, "device_uuid", lambda _: name)


def compilations(fake: FakeCudnn, *, dynamic: bool = False) -> int:
    """Return how many plans a new process compiles for a call."""
    forget()
    before, ones = fake.compilations, ct.full((64, 16), 1, "float16")
    y = ct.matmul(ones, ct.full((16, 8), 1, "float16")) if dynamic else ct.activation(ones)
    assert (y.numpy() == (16 if dynamic else 1)).all()
    return fake.compilations - before


@pytest.mark.parametrize("dynamic", [False, True])
def test_plans_with_bound_kernels_are_kept_for_each_gpu_that_compiled_them(
    fake: FakeCudnn, on_disk: Path, gpu: Any, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    monkeypatch.setattr(ct.config, "dynamic_shapes", dynamic)
    names = ("first", "second", "third")
    for expected in (1, 0, 0):
        for name in names:  # a folder that three machines share: none drops the plan of another one
            gpu(name)
            assert compilations(fake, dynamic=dynamic) == expected
    plans = [entry for entry in plan_store().entries() if entry.text]
    assert [entry.facts["unit"] for entry in plans] == [*names]
    for file in (on_disk / "plans").glob("*.plan_1"):
        file.unlink()
    plan_store().put(plans[0]._replace(key=plans[0].key.partition(" | unit ")[0], facts=plans[1].facts))
    gpu("first")
    with pytest.warns(CudnnWarning, match="must be compiled on the GPU that runs them: it hangs"):
        assert compilations(fake, dynamic=dynamic) == 1
    old = plans[0].facts.copy()
    del old["unit"]  # as one of an older version, or one that was compiled without a GPU
    plan_store().put(plans[0]._replace(key=plans[0].key.partition(" | unit ")[0], facts=old))
    assert compilations(fake, dynamic=dynamic) == 0
    gpu("fourth")
    with pytest.warns(CudnnWarning, match="must be compiled on the GPU that runs them: it hangs"):
        assert compilations(fake, dynamic=dynamic) == 1


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("cache", ["on", "plan_cache off", "off"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_plans_with_bound_kernels_are_imported_on_their_gpu_alone(
    fake: FakeCudnn,
    gpu: Any,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    verify: bool,
    cache: str,
    dynamic: bool,
) -> None:
    fake.second_engine = 5
    monkeypatch.setattr(ct.config, "dynamic_shapes", dynamic)
    other = int(verify and not dynamic)
    for name in ("first", "second"):
        gpu(name)
        with ct.record_plans() as recorded:
            compilations(fake, dynamic=dynamic)
        assert ct.export_plans(file if name == "first" else file.with_name("second.file"), recorded) == 1
    with pytest.warns(CudnnWarning, match=r"1 of \d entries .* compiled elsewhere: it hangs"):
        assert ct.import_plans(file, verify=verify) == 0
    (entry, *choices) = (one for one in decode(file.read_bytes()) if isinstance(one, StoredPlan))
    if not entry.text:
        (entry,) = (one for one in choices if one.text)
    old = {name: value for name, value in entry.facts.items() if name != "unit"}
    file.write_bytes(encode(entry._replace(key=entry.key.partition(" | unit ")[0], facts=old)))
    with pytest.warns(CudnnWarning, match="1 of 1 entries .* compiled elsewhere: it hangs"):
        assert ct.import_plans(file, verify=verify) == 0, "of an older version, or compiled without a GPU"
    file.write_bytes(encode(entry))
    assert compilations(fake, dynamic=dynamic) == 0, "the plan of this GPU was replaced"
    assert len([entry for entry in plan_store().entries() if entry.text]) == 2
    plan_store().clear()
    switch(monkeypatch, cache)
    monkeypatch.setattr(ct.config, "plan_cache", cache == "on")
    gpu("first")
    assert ct.import_plans(file, verify=verify) == 1
    assert compilations(fake, dynamic=dynamic) == other
    assert compilations(fake, dynamic=dynamic) == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_stored_kernels_of_another_cuda_are_not_used(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, file: Path, dynamic: bool
) -> None:
    """The wheels for CUDA 12 and CUDA 13 have one version, and compile other machine code."""
    monkeypatch.setattr(ct.config, "dynamic_shapes", dynamic)
    with ct.record_plans() as recorded:
        assert compilations(fake, dynamic=dynamic) == 1
    ct.export_plans(file, recorded)
    for entry in plan_store().entries():  # as older versions of this package stored them
        plan_store().put(entry._replace(key=entry.key.replace(" for CUDA 13 | ", " | ")))
    monkeypatch.setattr(_lib.load(), "build", "cuDNN 9.19.0 for CUDA 12")
    assert [compilations(fake, dynamic=dynamic) for _ in range(2)] == [1, 0]
    wanted = "are ignored: made for cuDNN 9.19.0 for CUDA 13, this is cuDNN 9.19.0 for CUDA 12"
    with pytest.warns(CudnnWarning, match=wanted):
        assert ct.import_plans(file) == 0
    done = CliRunner().invoke(main, ["cache", "import-plans", str(file)])
    assert done.exit_code == 1
    assert wanted in done.stderr
    assert "nothing was imported" in done.stderr


def test_a_malformed_file_of_facts_is_not_taken_for_a_malformed_plan(
    fake: FakeCudnn, gpu: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ct.record_plans() as recorded:
        compilations(fake)
    ct.export_plans(file, recorded)
    facts = file.with_name("wrong.json")
    facts.write_text('{"facts": [1]}')
    monkeypatch.setattr(ct.config, "facts", str(facts))
    forget()
    with pytest.raises(FactsError, match=rf"^{facts}: line 1: a fact is not an object"):
        ct.import_plans(file)
    with pytest.raises(FactsError, match="line 1: a fact is not an object"):
        compilations(fake)
    assert len([entry for entry in plan_store().entries() if entry.text]) == 1


def test_processes_of_several_gpus_compile_bound_kernels_at_once(
    fake: FakeCudnn, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has waited for the lock does not find the plan of the other GPU, and drops the lock."""
    held: list[bool] = []

    @contextmanager
    def lock(self: PlanStore, key: str) -> Iterator[bool]:
        held.append(True)
        yield True
        held.pop()

    monkeypatch.setattr(PlanStore, "lock", lock)
    save = stored._save
    seen: list[bool] = []
    monkeypatch.setattr(stored, "_save", lambda *given: (seen.append(bool(held)), save(*given))[1])
    assert compilations(fake) == 1
    assert seen == [False]


def test_plans_of_other_users_are_ignored(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    ct.activation(x_of())
    forget()
    monkeypatch.setattr("os.geteuid", lambda: 4321)
    monkeypatch.setattr("cudnn_ct.graph.plan_store.ROOT", 4322)
    with pytest.warns(CudnnWarning, match="belongs to user"):
        ct.activation(x_of())
    assert fake.compilations == 2


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("cache", ["on", "off"])
def test_imported_plans_replace_compilation(
    fake: FakeCudnn, file: Path, monkeypatch: pytest.MonkeyPatch, verify: bool, cache: str
) -> None:
    fake.second_engine = 5
    with ct.record_plans() as recorded:
        clip(x_of())
        ct.activation(x_of(7))
    assert len(recorded) == 2
    assert len(recorded.plans) == 3  # with the choice of an engine
    assert ct.export_plans(file, recorded) == 2
    assert plan_store().clear() == 3
    forget()
    switch(monkeypatch, cache)
    made = fake.compilations
    assert ct.import_plans(file, verify=verify) == 2
    for _ in range(2):
        clip(x_of())
        ct.activation(x_of(7))
        forget()
    assert fake.compilations == made + 2 * verify  # the other engine of each plan
    assert ct.export_plans(file) == 2


@pytest.fixture
def _heuristic_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "ORDER", ())


def of_engine_5(fake: FakeCudnn, file: Path, origin: str | None, *calls: Callable[[], object]) -> None:
    """Write the plans that calls make where the heuristics name engine 5 first; here they name engine 0."""
    fake.engine_number, fake.second_engine = 5, 0
    export(file, *calls)
    found = [entry for entry in decode(file.read_bytes()) if isinstance(entry, StoredPlan)]
    assert {entry.facts.pop("origin") for entry in found} == {"device"}
    facts = {} if origin is None else {"origin": origin}  # None is a file of an earlier version
    file.write_bytes(b"".join(encode(entry._replace(facts=entry.facts | facts)) for entry in found))
    fake.engine_number, fake.second_engine = 0, 5


def export(file: Path, *calls: Callable[[], object]) -> None:
    """Write the plans of calls, and forget all of them."""
    with ct.record_plans() as recorded:
        for call in calls or (lambda: ct.activation(x_of()),):
            call()
    ct.export_plans(file, recorded)
    plan_store().clear()
    forget()


def switch(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Switch the folder of plans off, or the setting, unless the cache is on."""
    if cache != "on":
        monkeypatch.setattr(ct.config, *(("algo_cache", "off") if cache == "off" else ("plan_cache", False)))


def relu() -> str:
    """Compute an activation, which names no engine, and return the engine that ran."""
    x = x_of(7)
    np.testing.assert_array_equal(ct.activation(x, mode="relu").numpy(), np.maximum(x.numpy(), 0))
    found = re.search(r"engine \d+", str(ct.last_plan()))
    assert found
    return found[0]


@pytest.mark.usefixtures("_heuristic_order")
@pytest.mark.parametrize("cache", ["on", "off", "plan_cache off"])
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("origin", ["description", None])
def test_plan_for_a_description_does_not_override_the_choice_of_the_device(
    fake: FakeCudnn,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: str,
    verify: bool,
    origin: str | None,
) -> None:
    of_engine_5(fake, file, origin, lambda: clip(x_of()), relu)
    switch(monkeypatch, cache)
    assert ct.import_plans(file, verify=verify) == 2
    made = fake.compilations
    for again in range(2):
        assert clip(x_of()).algorithm == "engine 0"
        assert relu() == "engine 0"
        forget()
        if again == 0:
            assert fake.compilations == made + 2
    # The plan that the device selected has replaced the imported one of the activation.
    assert fake.compilations == made + (2 if cache == "on" else 3)


@pytest.mark.usefixtures("_heuristic_order")
@pytest.mark.parametrize("cache", ["on", "off"])
@pytest.mark.parametrize("origin", ["description", None])
def test_plan_for_a_description_is_used_when_the_device_selects_its_engine(
    fake: FakeCudnn, file: Path, monkeypatch: pytest.MonkeyPatch, cache: str, origin: str | None
) -> None:
    of_engine_5(fake, file, origin, lambda: clip(x_of()), relu)
    fake.engine_number, fake.second_engine = 5, 0
    switch(monkeypatch, cache)
    assert ct.import_plans(file) == 2
    made, asked = fake.compilations, fake.heuristic_queries
    assert clip(x_of()).algorithm == relu() == "engine 5"
    assert fake.compilations == made
    assert fake.heuristic_queries == asked + 2
    forget()
    assert clip(x_of()).algorithm == relu() == "engine 5"
    assert fake.compilations == made
    # The device has confirmed both; without a folder, a choice is not stored.
    assert fake.heuristic_queries == asked + (2 if cache == "on" else 3)


@pytest.mark.usefixtures("_heuristic_order")
def test_plan_and_choice_of_the_same_kind_of_device_are_used_without_heuristics(
    fake: FakeCudnn, file: Path
) -> None:
    of_engine_5(fake, file, "device", lambda: clip(x_of()), relu)
    assert ct.import_plans(file) == 2
    made, asked = fake.compilations, fake.heuristic_queries
    assert clip(x_of()).algorithm == relu() == "engine 5"
    assert (fake.compilations, fake.heuristic_queries) == (made, asked)


def test_choice_for_a_description_on_disk_is_replaced_by_that_of_the_device(
    fake: FakeCudnn, file: Path
) -> None:
    """Earlier versions wrote such choices into the folder."""
    of_engine_5(fake, file, None, lambda: clip(x_of()))
    plan_store().put(*(entry for entry in decode(file.read_bytes()) if isinstance(entry, StoredPlan)))
    assert clip(x_of()).algorithm == "engine 0"
    forget()
    asked = fake.heuristic_queries
    assert clip(x_of()).algorithm == "engine 0"
    assert fake.heuristic_queries == asked


def test_verify_drops_a_plan_that_computes_other_numbers(fake: FakeCudnn, file: Path) -> None:
    fake.second_engine = 5
    export(file, lambda: ct.activation(x_of(), mode="relu"))
    (entry,) = (one for one in decode(file.read_bytes()) if isinstance(one, StoredPlan))
    other = entry.text.replace(b'"POINTWISE_MODE": [100]', b'"POINTWISE_MODE": [101]')
    assert other != entry.text, entry.text
    file.write_bytes(encode(entry._replace(text=other)))
    ct.import_plans(file, verify=True)
    message = "a stored plan is ignored.*its result differs from that of engine 0"
    with pytest.warns(CudnnWarning, match=message):
        y = ct.activation(x_of(), mode="relu")
    np.testing.assert_array_equal(y.numpy(), np.maximum(x_of().numpy(), 0))
    assert plan_store().entries() == []
    y = ct.activation(x_of(), mode="relu", out=y)
    np.testing.assert_array_equal(y.numpy(), np.maximum(x_of().numpy(), 0))


def test_verify_warns_when_no_other_engine_exists(file: Path) -> None:
    export(file)
    ct.import_plans(file, verify=True)
    with pytest.warns(CudnnWarning, match="used unverified: no other engine"):
        ct.activation(x_of())
    assert len(plan_store().entries()) == 1


def test_import_rejects_files_that_are_world_writable_or_of_another_kind(file: Path) -> None:
    export(file)
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="world-writable"):
        ct.import_plans(file)
    file.chmod(0o644)
    file.write_text("{}")
    with pytest.raises(ValueError, match="is not a file of compiled plans: expected an entry of"):
        ct.import_plans(file)


def test_import_warns_of_damaged_plans_and_rejects_a_file_with_no_others(file: Path) -> None:
    export(file)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="is not a file of compiled plans: the hash does not match"):
        ct.import_plans(file)
    file.write_bytes(content + content[:-1])
    with pytest.warns(CudnnWarning, match="1 of 2 entries in .* are ignored: the hash does not match"):
        assert ct.import_plans(file) == 1
    file.write_bytes(b"")  # as an export without plans
    assert ct.import_plans(file) == 0


def test_import_ignores_plans_for_other_gpus_with_one_line(file: Path) -> None:
    ct.activation(x_of())
    (entry,) = plan_store().entries()
    parts = entry.key.split(" | ")
    keys = [
        entry.key,
        entry.key.replace("cuDNN 9.19.0", "cuDNN 9.1.0"),
        entry.key.replace(parts[2], "NVIDIA T4, 40 SMs, 7.5"),
        "nonsense",
    ]
    file.write_bytes(b"".join(encode(entry._replace(key=key)) for key in keys))
    with pytest.warns(CudnnWarning, match="3 of 4 entries") as caught:
        assert ct.import_plans(file) == 1
    assert len(caught) == 1


def test_plans_are_compiled_when_the_cache_is_off(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct.config, "algo_cache", "off")
    for count in (1, 2):
        ct.activation(x_of())
        forget()
        assert fake.compilations == count


def test_nothing_is_stored_or_loaded_when_the_setting_is_off(
    fake: FakeCudnn, on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Config({}).plan_cache is True
    clip(x_of())
    ct.activation(x_of(7))
    kept, made = contents(on_disk), fake.compilations
    monkeypatch.setattr(ct.config, "plan_cache", False)
    monkeypatch.setattr(PlanStore, "get", unexpected)
    monkeypatch.setattr(PlanStore, "put", unexpected)
    monkeypatch.setattr(PlanStore, "lock", unexpected)
    for module in (stored, candidates):
        for name in ("plan_key", "choice_key", "choice_entry", "to_store"):
            monkeypatch.setattr(module, name, unexpected, raising=False)
    forget()
    clip(x_of())
    ct.activation(x_of(7))
    clip(x_of(3))
    assert fake.compilations == made + 3
    assert contents(on_disk) == kept


def test_recording_and_import_need_no_setting(
    fake: FakeCudnn, on_disk: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ct.config, "plan_cache", False)
    with ct.record_plans() as recorded:
        clip(x_of())
        ct.activation(x_of(7))
    assert ct.export_plans(file, recorded) == 2
    forget()
    made = fake.compilations
    assert ct.import_plans(file) == 2
    clip(x_of())
    ct.activation(x_of(7))
    assert fake.compilations == made
    clip(x_of(3))
    assert fake.compilations == made + 1
    assert contents(on_disk) == {}  # imported plans stay in the process
    assert ct.export_plans(file) == 2


def test_dynamic_graphs_are_recorded_next_to_static_ones() -> None:
    spec = x_of().spec
    graph = activation.activation_graph(ActivationSpec("relu"), spec, spec)
    static, dynamic = PlanRequest(graph), PlanRequest(graph._replace(dynamic=True))
    assert static.identity != dynamic.identity
    assert graph_from_json(graph_to_json(dynamic.graph)) == dynamic.graph


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def unexpected(*_: object, **__: object) -> None:
    raise AssertionError("a store of plans is used")


def test_record_plans_records_calls_that_were_prepared_before(tmp_path: Path) -> None:
    clip(x_of())
    with ct.record_plans() as outer, ct.record_plans() as recorded:
        clip(x_of())
        clip(x_of())
    assert len(recorded) == len(outer) == 1
    (request,) = recorded.requests.values()
    assert request.choice.startswith("Clipping ")
    assert recorded.save(tmp_path / "graphs.json") == 1
    clip(x_of(4))
    assert len(recorded) == 1


def rows(*shape: int, dtype: str = "bfloat16") -> ct.DeviceArray:
    return ct.zeros(shape, dtype)


STATS = (1, 2, 64)


@pytest.mark.parametrize(
    ("call", "chosen"),
    [
        (lambda: ct.layer_norm(rows(64, 128), rows(128), rows(128)), True),
        (lambda: ct.rms_norm(rows(64, 128), rows(128)), True),
        (lambda: ct.matmul(rows(64, 128), rows(128, 64), bias=rows(64)), True),
        (lambda: ct.matmul(rows(2, 64, 128), rows(128, 64)), True),
        (lambda: ct.attention(*(rows(1, 2, 64, 64) for _ in range(3))), True),
        (
            lambda: ct.attention_backward(
                *(rows(1, 2, 64, 64) for _ in range(5)), rows(1, 2, 64, dtype="float32")
            ),
            False,
        ),  # with buffers, and in any order
        (lambda: ct.layer_norm(rows(64, 128), rows(128, dtype="float32"), rows(128, dtype="float32")), False),
    ],
)
def test_record_plans_on_shapes_notes_the_choice_of_an_engine(
    call: Callable[[], object], chosen: bool
) -> None:
    """Without the choice, the first call of another process asks the heuristics, which may differ."""
    with ct.record_plans(shapes_only=True) as recorded:
        call()
    (request,) = recorded.requests.values()
    assert bool(request.choice) == chosen


def test_recorded_choice_is_not_that_of_another_graph(fake: FakeCudnn) -> None:
    x, w = images(2, 4, 5, 5), images(4, 4, 3, 3)
    with ct.record_plans() as recorded:
        clip(x_of(), "engine 0")
        fake.engines = False
        ct.conv(x, w)
        plan = ct.last_plan()
    assert plan.candidate.backend == "legacy"
    assert [request.choice for request in recorded.requests.values()] == [""]


def test_record_plans_on_shapes_needs_no_device(host: Host) -> None:
    live = len(host.live)
    with ct.record_plans(shapes_only=True) as recorded:
        x = ct.zeros((2, 3, 4, 4))
        y = ct.activation(x)
        assert y.numpy().shape == (2, 3, 4, 4)
        z = ct.pool(np.zeros((2, 3, 4, 4), "float16"), window=2)
        assert z.shape == (2, 3, 2, 2)
        assert z.dtype == np.float16
        assert ct.add(x, y, out=y) is y
        with pytest.raises(ValueError, match="window"):
            ct.pool(x, window=9)
    assert len(recorded) == 1
    assert len(host.live) == live
    with warnings.catch_warnings(action="error"):
        assert ct.activation(ct.asarray(np.array([[1, -1]], np.float32))).numpy().tolist() == [[1, 0]]


def test_graphs_and_operations_with_engines_are_recorded_on_shapes() -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        x = ct.zeros((2, 8, 16, 64), "float16")
        assert ct.attention(x, x, x).y.shape == x.shape
        rows, weight = ct.zeros((8, 64), "float16"), ct.zeros((64,), "float32")
        ct.matmul(rows, ct.zeros((64, 32), "float16"))
        ct.layer_norm(rows, weight, weight)
        graph = ct.Graph()
        a = graph.input((8, 64), "float16", name="a")
        built = graph.build(graph.relu(a))
        assert built(rows).shape == (8, 64)
        with pytest.raises(ValueError, match="a has the wrong shape"):
            built(ct.zeros((8, 63), "float16"))
        ct.conv(ct.zeros((2, 3, 5, 6)), ct.zeros((4, 3, 3, 3)))
    assert recorded.skipped == {}
    found = {tuple(node.row for node in one.graph.nodes): one for one in recorded.requests.values()}
    assert len(found) == len(recorded) == 5, found
    assert [one.choice.partition(" ")[0] for one in found.values() if one.choice] == [
        "AttentionProblem",
        "MatmulProblem",
        "GraphProblem",
    ]


NOT_ON_SHAPES = ("RNN", "ctc_loss", "dropout")


def test_rows_of_the_selftest_run_on_shapes() -> None:
    """All operations except NOT_ON_SHAPES return arrays with the shapes of the reference."""
    for case in cases():
        if case.operation in NOT_ON_SHAPES:
            continue
        inputs = case.inputs()
        with ct.record_plans(shapes_only=True):
            found = getattr(ct, case.operation)(*inputs.operands, **inputs.keywords, **inputs.device_keywords)
        expected = getattr(ct.reference, case.operation)(*inputs.operands, **inputs.keywords)
        pairs = zip(several(found), several(expected), strict=True)
        assert all(got is None or got.shape == np.shape(want) for got, want in pairs), case


def test_verification_needs_a_call_before_a_capture() -> None:
    from cudnn_ct.graph.stored import CheckedPlan

    class Capturing:
        capturing = True

    plan: Any = CheckedPlan.__new__(CheckedPlan)
    plan._key, plan.workspace, plan._packs = "key", 0, {}
    with pytest.raises(NotInitializedError, match="make the same call once before capturing it"):
        plan.run(Capturing(), ())
