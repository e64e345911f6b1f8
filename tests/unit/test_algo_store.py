"""The algorithm cache on disk: concurrent users, bad files, and export."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_ct import testing
from cudnn_ct._config import config
from cudnn_ct.autotune import store as autotune_store
from cudnn_ct.autotune.store import SUFFIX, Store, export_algo_cache, import_algo_cache, store
from cudnn_ct.errors import CudnnWarning
from cudnn_doctor.read.files import contents
from tests.processes import environment

CHOICE = {"engine": 3, "knobs": {"tile": [64, 128]}, "note": "größer"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "algo_cache"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and a process that has not used its store yet."""
    testing.reset()
    monkeypatch.setattr(config, "algo_cache", None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    with pytest.warns(CudnnWarning, match=match) as seen:
        yield
    (text,) = [str(warning.message) for warning in seen]
    assert "timed again in this process; set CUDNN_CT_ALGO_CACHE to another folder or to 'off'" in text


def use(made: Store) -> dict[str, Any] | None:
    """Do all that a store can, twice; return its entry for a key that was never put."""
    for _ in range(2):
        made.get("key")
        made.put("put", CHOICE)
        made.export()
        made.load({"loaded": CHOICE})
    return made.get("nowhere")


# --- a map -------------------------------------------------------------------------------------------------


def test_store_returns_the_newest_entry_for_any_text_as_key(path: Path) -> None:
    keys = ["before", "", "größer × 3", "畳み込み", "🙂", "a\0b", "../x", "/", "x" * 9999]
    made = Store(str(path))
    for key in keys:
        made.put(key, {"a": 1})
        made.put(key, CHOICE)
        assert Store(path).get(key) == CHOICE
    assert made.export() == dict.fromkeys(keys, CHOICE)
    assert made.get("another key") is None


def test_store_makes_its_folder_by_the_first_entry_below_the_folder_of_its_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, nowhere = Store("folder/choices"), Store(None)
    monkeypatch.chdir("/")
    for empty in (made, nowhere):
        assert empty.get("key") is None
        assert empty.export() == {}
        empty.clear()
    assert use(nowhere) is None
    assert nowhere.load({"key": CHOICE}) == 0
    assert list(tmp_path.iterdir()) == []
    made.put("key", CHOICE)
    assert len(list((tmp_path / "folder" / "choices").iterdir())) == 1


def test_store_drops_the_oldest_entries_and_leaves_other_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune_store, "MAX_ENTRIES", 10)
    path.mkdir(parents=True)
    others = [path / "precious.txt", path / f"{'0' * 64}.algo_cache_3.json"]
    for other in others:
        other.write_text("{}")
    made = Store(path)
    made.load({f"old {number}": {} for number in range(10)})
    for file in path.glob(f"*{SUFFIX}"):
        os.utime(file, (1, 1))
    assert made.load({f"new {number}": {} for number in range(7)}) == 7
    assert sorted(made.export())[:7] == [f"new {number}" for number in range(7)]
    assert len(made.export()) == 10
    made.clear()
    assert sorted(path.iterdir()) == sorted(others)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ([("key", {})], TypeError),
        ({"good": {}, "key": [1]}, TypeError),
        ({"good": {}, "key": {"a": {1}}}, TypeError),
        ({"good": {}, "key": {"a": float("nan")}}, ValueError),
        ({"good": {}, "\ud800": {}}, ValueError),
    ],
)
def test_store_loads_no_entry_if_one_is_bad(path: Path, choices: Any, error: type[Exception]) -> None:
    made = Store(path)
    with pytest.raises(error):
        made.load(choices)
    assert made.export() == {}


WRITE_FOR_EVER = """
import itertools, sys
from cudnn_ct.autotune.store import Store
store = Store(sys.argv[1])
for i in itertools.count():
    store.load({f"key {j}": {"round": i, "text": "x" * 9000} for j in range(50)})
    print("written", flush=True)
"""


def test_store_is_readable_while_processes_write_and_are_killed(path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITE_FOR_EVER, str(path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) for _ in range(2)]
    pause = random.Random(0)
    made = Store(path)
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        assert len(made.export()) == 50  # without a warning, which is an error here
        time.sleep(pause.uniform(0, 0.03))
        writer.kill()
        writer.communicate()
        entries = Store(path).export()
        assert len(entries) == 50
        assert {len(entry["text"]) for entry in entries.values()} == {9000}


# --- bad files ---------------------------------------------------------------------------------------------

BAD_FILES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:20]),
    "empty": lambda file: file.write_text(""),
    "another key": lambda file: file.write_text('{"key": "other", "entry": {}}'),
    "not a dict": lambda file: file.write_text('{"key": "key", "entry": [1]}'),
    "no key": lambda file: file.write_text("[]"),
    "a lone surrogate": lambda file: file.write_text('{"key": "\\ud800", "entry": {}}'),
    "not UTF-8": lambda file: file.write_bytes(b'{"key": "\xff"}'),
    "deep": lambda file: file.write_text("[" * 100_000),
    "large": lambda file: file.write_text('{"key": "key", "entry": {}}' + " " * 2**20),
    "endless": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("bad", BAD_FILES)
def test_store_skips_a_bad_file_with_one_warning(path: Path, bad: str) -> None:
    made = Store(path)
    made.load({"key": CHOICE, "other": CHOICE})
    file = path / Store(path).file_name("key")
    BAD_FILES[bad](file)
    with one_warning(f"malformed file, {file.name}"):
        assert made.get("key") is None
        assert made.export() == {"other": CHOICE}
    if bad not in ("endless", "a pipe"):
        made.put("key", CHOICE)
        assert made.get("key") == CHOICE


BAD_FOLDERS: dict[str, Callable[[Path], object]] = {
    "File exists": lambda path: path.write_text(""),
    "Not a directory": lambda path: path.write_text("SQLite format 3\0"),
    "cannot be written": lambda path: path.symlink_to("nowhere"),
    "symbolic link": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("words", BAD_FOLDERS)
def test_store_warns_once_when_its_folder_cannot_be_made(tmp_path: Path, words: str) -> None:
    path = tmp_path / "choices"
    BAD_FOLDERS[words](path)
    made = Store(path)
    with one_warning(words):
        if words == "File exists":
            assert made.load({"key": CHOICE}) == 0
        assert use(made) is None
    assert made.failed


def test_store_reads_on_a_full_disk_and_leaves_no_part_of_a_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store().load({str(number): CHOICE for number in range(50)})
    file, link = home / "fleet.json", home / "link.json"
    link.symlink_to(file)
    assert export_algo_cache(link) == 50
    assert link.is_symlink()
    before, write = file.read_bytes(), Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        write(path, content[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            export_algo_cache(file)
        with one_warning("cannot be written: .*No space left on device"):
            use(store())
        assert store().get("7") == CHOICE
    assert file.read_bytes() == before
    assert sorted(one.name for one in home.glob("*.json*")) == ["fleet.json", "link.json"]
    assert not list(home.rglob(".*json*"))


# --- the store of the process ------------------------------------------------------------------------------


def test_store_has_one_folder_for_each_setting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = store()
    assert store() is default
    assert default.path == home / ".cache" / "cudnn_ct" / "algo_cache"
    paths = {"~/mine": home / "mine", home / "other": home / "other", "off": None}
    for setting, wanted in paths.items():
        monkeypatch.setattr(config, "algo_cache", setting)
        assert store().path == wanted
        assert store() is store()
    assert list(home.iterdir()) == []


def test_store_ignores_the_file_of_an_earlier_version_with_one_line(home: Path) -> None:
    old = home / ".cache" / "cudnn_ct" / "algo_cache.sqlite"
    old.parent.mkdir(parents=True)
    old.write_text("SQLite format 3\0")
    with one_warning(f"of an earlier version, {old}, is ignored"):
        assert store().get("key") is None
    store().put("key", CHOICE)
    assert Store(store().path).get("key") == CHOICE  # without a warning


@pytest.mark.parametrize("setting", [None, "~/mine"])
def test_store_is_off_without_a_home_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    def without_home(*args: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", without_home)
    monkeypatch.setattr(config, "algo_cache", setting)
    with one_warning("kept on disk: .*home"):
        assert use(store()) is None
    assert store().path is None


def test_store_is_off_without_platformdirs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with one_warning("kept on disk: .*platformdirs"):
        assert use(store()) is None


# --- export and import -------------------------------------------------------------------------------------


def test_import_replaces_entries_by_exported_ones(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = {"b": CHOICE, "größer": {}, "a": {"x": [1, None, True, 0.1]}}
    file = home / "fleet.json"
    assert export_algo_cache(file) == import_algo_cache(file) == 0
    store().load(choices)
    assert export_algo_cache(file) == 3
    assert json.loads(file.read_text()) == {"format": "cudnn_ct algo_cache 2", "entries": choices}

    monkeypatch.setattr(config, "algo_cache", home / "other")
    store().put("a", {"replaced": True})
    store().put("mine", {})
    assert import_algo_cache(str(file)) == 3
    assert store().export() == {**choices, "mine": {}}
    monkeypatch.setattr(config, "algo_cache", "off")
    assert import_algo_cache(file) == 0
    with pytest.raises(FileNotFoundError, match="nothing"):
        import_algo_cache(home / "nothing.json")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"format": "cudnn_ct choi', "Unterminated"),
        (b"\x80\x04N.", "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 3", "entries": {}}', "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 2"}', "entries"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": []}', "mapping"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": {"good": {}, "bad": 7}}', "'bad' must .*got 7"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_import_names_a_bad_file_and_loads_nothing(home: Path, content: bytes, why: str) -> None:
    file = home / "fleet.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why) as caught:
        import_algo_cache(file)
    assert str(file) in str(caught.value)
    assert store().export() == {}


def test_import_rejects_a_file_descriptor() -> None:
    with (
        tempfile.TemporaryFile() as file,
        pytest.raises(TypeError, match="path is not a path"),
    ):
        import_algo_cache(file.fileno())  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [3, True, np.int8(3)])
def test_import_rejects_a_number(number: Any) -> None:
    with pytest.raises(TypeError, match="path is not a path"):
        import_algo_cache(number)
    with pytest.raises(TypeError, match="expected str, bytes or"):
        contents(number, 10)
