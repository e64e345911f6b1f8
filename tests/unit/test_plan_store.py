"""Compiled plans on disk: the format of their files, the store, and the lock of those that compile."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import cudnn_ct
from cudnn_ct._cache_files import replace_file
from cudnn_ct.errors import CudnnWarning
from cudnn_ct.graph import plan_store as module
from cudnn_ct.graph.attributes import graph_from_json, graph_text, graph_to_json
from cudnn_ct.graph.operations import Graph, Node, Tensor, node
from cudnn_ct.graph.plan_store import FORMAT, PlanStore, StoredPlan, _imported, decode, encode
from cudnn_ct.graph.recording import PlanRequest, RecordedPlans, read_requests
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.shapes.specs import TensorSpec
from tests.mixed import in_threads
from tests.processes import environment

FORMAT_1 = "cudnn_ct graphs 1"
PLAN = StoredPlan("plan | cuDNN 9.19.0 | GPU | engine 1 | {}", {"candidate": {}}, b'{"cudnn": "\0\n"}')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlanStore]:
    yield PlanStore(tmp_path / "algo_cache" / "plans")
    _imported.clear()


def file_of(store: PlanStore, key: str = PLAN.key) -> Path:
    assert store.path is not None
    return store.path / store.file_name(key)


def plan(number: int, size: int = 10) -> StoredPlan:
    return PLAN._replace(key=f"plan {number}", text=b"x" * size)


def test_a_device_and_a_pipe_are_written_to(tmp_path: Path) -> None:
    replace_file(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_file(pipe, b"content")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        replace_file(tmp_path, b"x")


def test_errors_name_the_path_that_was_given(tmp_path: Path) -> None:
    """Not the temporary file that is written, nor the number of an open file."""
    with pytest.raises(OSError, match=r"'/proc/plans\.file'$"):  # no user can write there
        replace_file(Path("/proc/plans.file"), b"x")
    with pytest.raises(IsADirectoryError, match=re.escape(f"'{tmp_path}'")):
        cudnn_ct.import_plans(tmp_path)


def test_a_pipe_is_no_exported_cache(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        cudnn_ct.import_algo_cache(tmp_path / "pipe")


# --- the format --------------------------------------------------------------------------------------------


def test_decode_returns_the_entries_that_encode_wrote() -> None:
    entries = [PLAN, plan(1, 0), plan(2, 100_000)]
    assert list(decode(b"".join(map(encode, entries)))) == entries
    assert list(decode(b"")) == []


def test_decode_rejects_every_changed_byte() -> None:
    content = encode(PLAN)
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        try:
            assert PLAN not in list(decode(changed)), place
        except ValueError as error:
            assert f"expected an entry of '{FORMAT}'" in str(error)


@pytest.mark.parametrize("content", [b"x", b"{}\n", b'{"size": 1}\n', b"[]\n", b"\n", b"[" * 2000 + b"\n"])
def test_decode_raises_for_other_files(content: bytes) -> None:
    with pytest.raises(ValueError, match="expected an entry"):
        list(decode(content))


def test_decode_skips_entries_of_other_formats_and_malformed_ones() -> None:
    later = encode(PLAN).replace(FORMAT.encode(), b"cudnn_ct plan 2")
    odd = encode(PLAN._replace(key=3))  # type: ignore[arg-type]
    alone = encode(PLAN._replace(key="\ud800"))  # half of a character, which no file name can have
    assert list(decode(later + odd + alone + encode(PLAN))) == [
        "the format is 'cudnn_ct plan 2', expected 'cudnn_ct plan 1'",
        "the entry is malformed",
        "the entry is malformed",
        PLAN,
    ]


# --- graphs as JSON ----------------------------------------------------------------------------------------


def test_graphs_and_requests_survive_json(tmp_path: Path) -> None:
    spec = TensorSpec.packed((2, 3, 4, 4), "float16", "nhwc")
    offsets = Tensor(5, TensorSpec.packed((3, 1, 1, 1), "int64"))
    x, y = Tensor(1, spec, ragged=offsets), Tensor(2, spec)
    scale, middle = Tensor(3, TensorSpec.packed((1, 1, 1, 1)), value=0.5), Tensor(4, spec, virtual=True)
    inner = Graph((node("pointwise", mode="relu_fwd", xdesc=x, ydesc=middle),), ())
    outer = node(
        "sdpa_forward",
        qdesc=x,
        scaledesc=scale,
        odesc=y,
        subgraph=inner,
        paddings=(1, 2.5, None, Fraction(1, 2)),
    )
    graph = Graph((outer, Node("pointwise", {"mode": "add", "xdesc": middle, "ydesc": y})), (x, offsets, y))
    assert graph_text(graph_from_json(graph_to_json(graph))) == graph_text(graph)
    recorded, rules = RecordedPlans(), EngineRules(frozenset({"b", "a"}), last=(3,))
    for request in (
        PlanRequest(graph, (1, 0)),
        PlanRequest(graph, None, rules, "engine 7", "", {}),
        PlanRequest(graph, None, rules, "engine 7", "", {}, replaceable=True),
        PlanRequest(graph, choice="problem", limits={"deterministic": True, "workspace_limit": 100}),
    ):
        recorded.requests[request.identity] = request
    assert recorded.save(tmp_path / "graphs") == 4

    back = read_requests(json.loads((tmp_path / "graphs").read_text()))
    assert [one.identity for one in back] == list(recorded.requests)
    assert back[3].limits == {"deterministic": True, "workspace_limit": 100}


def test_graph_text_differs_for_every_stride_attribute_and_dtype() -> None:
    spec = TensorSpec.packed((2, 3, 4, 4))
    texts = {
        graph_text(Graph((node("pointwise", mode=mode, alpha=alpha, xdesc=Tensor(1, one)),), ()))
        for mode in ("relu_fwd", "tanh_fwd")
        for alpha in (0.0, -0.0, 1.0)
        for one in (spec, spec._replace(strides=(49, 16, 4, 1)), spec._replace(dtype="float16"))
    }
    assert len(texts) == 18


@pytest.mark.parametrize(
    "content",
    [[], {}, {"format": "other"}, {"format": FORMAT_1}, {"format": FORMAT_1, "graphs": [{}]}],
)
def test_read_requests_raises_for_other_json(content: object) -> None:
    with pytest.raises(ValueError, match=r"not a JSON object|malformed"):
        read_requests(content)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [{"row": "exec", "attributes": {}}]},
        {"nodes": [{}]},
        {"operands": [9]},
        {"tensors": [{"uid": 1, "shape": [1, 2], "strides": [1], "dtype": "float32"}]},
        {"tensors": [{"uid": 1, "shape": [1], "strides": [1], "dtype": "complex"}]},
        {"tensors": 3},
    ],
)
def test_graph_from_json_raises_for_malformed_graphs(change: dict[str, object]) -> None:
    graph = {
        "tensors": [{"uid": 1, "shape": [1], "strides": [1], "dtype": "float32"}],
        "nodes": [],
        "operands": [1],
    }
    assert graph_from_json(graph).operands[0].spec.shape == (1,)
    with pytest.raises(ValueError, match=r"graph|strides"):
        graph_from_json({**graph, **change})


# --- the store ---------------------------------------------------------------------------------------------


def test_store_returns_plans_by_their_whole_key(store: PlanStore) -> None:
    assert store.get(PLAN.key) is None
    assert store.put(PLAN) == 1
    assert store.get(PLAN.key) == PLAN
    os.rename(file_of(store), file_of(store, "another key"))
    assert store.get("another key") is None
    assert store.clear() == 1
    assert store.entries() == []


def test_store_creates_folders_for_this_user_only(store: PlanStore) -> None:
    store.put(PLAN)
    assert file_of(store).parent.stat().st_mode & 0o777 == 0o700
    assert not file_of(store).stat().st_mode & 0o022


def test_store_ignores_folders_that_are_world_writable(store: PlanStore) -> None:
    store.put(PLAN)
    for folder in (file_of(store).parent, file_of(store).parent.parent):
        mode = folder.stat().st_mode
        folder.chmod(0o777)
        fresh = PlanStore(store.path)
        with pytest.warns(CudnnWarning, match="world-writable"):
            assert fresh.get(PLAN.key) is None
        with warnings.catch_warnings(action="error"):  # only once
            assert fresh.put(PLAN) == 0
        folder.chmod(mode)
    assert store.get(PLAN.key) == PLAN


def test_store_deletes_the_least_recently_used_plans_beyond_its_limit(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FOLDER", 10_000)
    for number in range(4):
        store.put(plan(number, 2_000))
        os.utime(file_of(store, f"plan {number}"), (number, number))
    assert store.get("plan 0") is not None  # used now
    store.put(plan(4, 3_000))
    assert [entry.key for entry in store.entries()][-1] == "plan 4"
    assert store.get("plan 0") is not None
    assert store.get("plan 1") is None
    assert sum(file.stat().st_size for file in file_of(store).parent.glob("*.plan_1")) <= 10_000


def test_lock_is_given_up_when_the_file_system_has_none(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.warns(CudnnWarning, match="cannot be locked"), store.lock("plan") as waited:
        assert not waited
    with warnings.catch_warnings(action="error"), store.lock("plan") as waited:  # only one warning
        assert not waited
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_clear_deletes_what_a_killed_writer_left(store: PlanStore) -> None:
    store.put(PLAN)
    left = file_of(store).with_name(f".{store.file_name('other')}.1.2")
    left.write_bytes(b"a part")
    assert [entry.key for entry in store.entries()] == [PLAN.key]
    assert store.clear() == 1
    assert not left.exists()


def test_plan_file_that_links_to_itself_is_a_warning(store: PlanStore) -> None:
    store.put(PLAN)
    file_of(store, "loop").symlink_to(file_of(store, "loop"))
    with pytest.warns(CudnnWarning, match="cannot be written"):
        assert store.put(plan("loop", 10)) == 0


def test_store_without_a_folder_keeps_imported_plans_only(tmp_path: Path) -> None:
    nowhere = PlanStore(None)
    assert nowhere.put(PLAN) == 0
    assert nowhere.get(PLAN.key) is None
    with nowhere.lock(PLAN.key) as waited:
        assert not waited
    nowhere.import_({PLAN.key: PLAN}, verify=False)
    assert nowhere.get(PLAN.key) == PLAN
    assert not nowhere.needs_check(PLAN.key)
    with pytest.warns(CudnnWarning, match="a stored plan is ignored: it is bad"):
        nowhere.discard(PLAN.key, "it is bad")
    assert nowhere.get(PLAN.key) is None


def test_store_writes_plans_after_their_first_result_was_right(store: PlanStore) -> None:
    store.import_({PLAN.key: PLAN}, verify=True)
    assert store.needs_check(PLAN.key)
    assert store.get(PLAN.key) == PLAN
    assert PlanStore(store.path and store.path.parent / "other").path != store.path
    store.checked(PLAN.key)
    assert not store.needs_check(PLAN.key)
    assert not _imported
    assert store.get(PLAN.key) == PLAN


def test_store_warns_once_when_its_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = PlanStore(tmp_path / "file" / "plans")
    with pytest.warns(CudnnWarning, match="cannot be"):
        assert broken.put(PLAN) == 0
    with warnings.catch_warnings(action="error"):  # only once
        assert broken.get(PLAN.key) is None
        with broken.lock(PLAN.key) as waited:
            assert not waited


# --- the lock ----------------------------------------------------------------------------------------------

COMPILE = """
import sys, time
from pathlib import Path
from cudnn_ct.graph.plan_store import PlanStore, StoredPlan

store, ready, go = PlanStore(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
ready.touch()
while not go.exists():
    time.sleep(0.001)
if store.get("key") is None:
    with store.lock("key") as waited:
        if not (waited and store.get("key")):
            time.sleep(0.3)  # compiling
            store.put(StoredPlan("key", {}, b"plan"))
            print("compiled")
"""


def test_two_processes_compile_a_plan_once(tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(tmp_path / "plans"), str(tmp_path / name), go],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second", "third")
    ]
    end = time.monotonic() + 60
    while len([name for name in ("first", "second", "third") if (tmp_path / name).exists()]) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert sorted(child.communicate(timeout=60)[0] for child in children) == ["", "", "compiled\n"]


def test_lock_lets_one_thread_at_a_time_and_the_same_thread_again(store: PlanStore) -> None:
    order = []

    def work(number: int) -> None:
        with store.lock("key"):
            order.append(number)
            with store.lock("key") as waited:  # a finalizer of this thread
                assert not waited
            time.sleep(0.02)
            order.append(number)

    in_threads(3, work)
    assert len(order) == 6
    assert order[::2] == order[1::2]


def test_lock_of_a_process_that_hangs_is_not_waited_for_forever(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    waited = []

    def work() -> None:
        with store.lock("key") as one:
            waited.append(one)

    with store.lock("key"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        assert waited == [True]


def test_lock_is_released_when_compiling_fails(store: PlanStore) -> None:
    with pytest.raises(RuntimeError), store.lock("key"):
        raise RuntimeError
    with store.lock("key") as waited:
        assert not waited
