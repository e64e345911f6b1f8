"""The algorithm cache: many users at once, and whatever may be wrong with it."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from cudnn_ct import testing
from cudnn_ct._config import config
from cudnn_ct.autotune import store as autotune_store
from cudnn_ct.autotune.store import Store, export_algo_cache, import_algo_cache, store
from cudnn_ct.errors import CudnnWarning
from tests.sqlite_files import HOSTILE

CHOICE = {"engine": 3, "knobs": {"tile": [64, 128]}, "note": "größer"}
SOMEBODY = 65534  # who is not root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "algo_cache.sqlite"


@pytest.fixture
def full(path: Path) -> Store:
    """A store with a file of many pages."""
    made = Store(path)
    made.load({f"key {i}": {"number": i, "text": "x" * 200} for i in range(200)})
    return made


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    with pytest.warns(CudnnWarning, match=match) as seen:
        yield
    assert [str(warning.message) for warning in seen[1:]] == []
    text = str(seen[0].message)
    assert "timed again in this process" in text
    assert "CUDNN_CT_ALGO_CACHE" in text
    assert "'off'" in text


def use(made: Store) -> dict[str, Any] | None:
    """Everything that can be done with a store, twice; what it gives for a key that was never put."""
    for _ in range(2):
        made.get("key 0")
        made.put("put", CHOICE)
        made.export()
        made.load({"loaded": CHOICE})
    return made.get("nowhere")


def sql(path: Path, *statements: str) -> list[Any]:
    """Run statements and return the rows of the last one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        return [database.execute(statement).fetchall() for statement in statements][-1]


def assert_sound(path: Path) -> None:
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run code in a fresh interpreter that finds the same cudnn_ct; to be waited for."""
    environment = {**os.environ, "PYTHONPATH": str(Path(cudnn_ct.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str], send: str = "") -> None:
    _, errors = process.communicate(send, timeout=120)
    assert process.returncode == 0, errors


# --- a map -------------------------------------------------------------------------------------------------


def test_what_is_put_is_there_for_another_store(path: Path) -> None:
    Store(path).put("key", CHOICE)
    assert Store(path).get("key") == CHOICE
    assert Store(str(path)).get("another key") is None


def test_the_newest_choice_stays(path: Path) -> None:
    made = Store(path)
    made.put("key", {"a": 1})
    made.put("key", {"a": 2})
    assert made.export() == {"key": {"a": 2}}


def test_a_choice_is_a_copy(path: Path) -> None:
    made = Store(path)
    made.put("key", CHOICE)
    first = made.get("key")
    assert first is not None
    first["engine"] = 99
    assert made.get("key") == CHOICE


@pytest.mark.parametrize(
    "key", ["", "größer × 3", "畳み込み", "🙂", "a\0b", "'; DROP TABLE algo_cache_2", "x" * 9999]
)
def test_any_text_is_a_key(path: Path, key: str) -> None:
    made = Store(path)
    made.put("before", {})
    made.put(key, CHOICE)
    assert made.get(key) == CHOICE
    assert made.export() == {"before": {}, key: CHOICE}


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Store("choices")
    monkeypatch.chdir("/")
    made.put("key", CHOICE)
    assert made.path == tmp_path / "choices"
    assert made.path.is_file()


def test_reading_and_clearing_make_no_file(path: Path) -> None:
    made = Store(path)
    assert made.get("key") is None
    assert made.export() == {}
    made.clear()
    assert not path.parent.exists()


def test_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sqlite3, "connect", None)
    made = Store(None)
    assert use(made) is None
    made.clear()
    assert made.path is None
    assert made.export() == {}
    assert made.load({"key": CHOICE}) == 0
    assert list(tmp_path.iterdir()) == []


def test_clear_forgets_this_versions_rows_only(full: Store) -> None:
    assert full.path is not None
    sql(full.path, "CREATE TABLE algo_cache_3 (x)", "INSERT INTO algo_cache_3 VALUES (7)")
    full.clear()
    assert full.export() == {}
    assert sql(full.path, "SELECT x FROM algo_cache_3") == [(7,)]
    full.put("key", CHOICE)
    assert full.get("key") == CHOICE


def test_the_oldest_rows_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune_store, "MAX_ROWS", 10)
    made = Store(path)
    for number in range(25):
        made.put(str(number), {})
    assert list(made.export()) == [str(number) for number in range(15, 25)]
    assert made.load({str(number): {} for number in range(100, 130)}) == 30
    assert list(made.export()) == [str(number) for number in range(120, 130)]


@pytest.mark.parametrize(
    ("choices", "error", "words"),
    [
        (None, TypeError, "not None"),
        ([("key", {})], TypeError, "mapping"),
        ({1: {}}, TypeError, "key is a str, not 1"),
        ({"key": 1}, TypeError, "'key' is a dict .*, not 1"),
        ({"key": [1]}, TypeError, "'key' is a dict"),
        ({"key": {1: 2}}, TypeError, "'key' is a dict"),
        ({"key": {"a": {1}}}, ValueError, "'key' cannot be written as JSON.*set"),
        ({"key": {"a": float("nan")}}, ValueError, "'key' cannot be written as JSON"),
        ({"\ud800": {}}, ValueError, "cannot be written"),
    ],
)
def test_a_bad_choice_is_refused_and_none_is_loaded(path: Path, choices: Any, error: Any, words: str) -> None:
    made = Store(path)
    good_first = {"good": {}, **choices} if isinstance(choices, dict) else choices
    with pytest.raises(error, match=words):
        made.load(good_first)
    assert made.export() == {}
    if isinstance(choices, dict):
        with pytest.raises(error, match=words):
            made.put(*next(iter(choices.items())))


# --- many at once ------------------------------------------------------------------------------------------


def test_many_threads(path: Path) -> None:
    made = Store(path)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                made.put(f"{number} {i}", {"i": i})
                assert made.get(f"{number} {i}") == {"i": i}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(made.export()) == 240


WRITE_WHEN_TOLD = """
import sys
from cudnn_ct.autotune.store import Store
path, number = sys.argv[1:]
store = Store(path, timeout=60)
input()
for i in range(50):
    store.put(f"{number} {i}", {"number": number, "i": i})
    assert store.get(f"{number} {i}") is not None
"""


def test_many_processes(path: Path) -> None:
    writers = [child(WRITE_WHEN_TOLD, path, number) for number in range(8)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        finish(writer)
    expected = {f"{number} {i}": {"number": str(number), "i": i} for number in range(8) for i in range(50)}
    assert Store(path).export() == expected
    assert_sound(path)


WRITE_FOR_EVER = """
import itertools, sys
from cudnn_ct.autotune.store import Store
store = Store(sys.argv[1])
for i in itertools.count():
    store.load({f"key {j}": {"round": i, "text": "x" * 300} for j in range(500)})
    print("written", flush=True)
"""


def test_writers_that_are_killed(path: Path) -> None:
    pause = random.Random(0)
    for _ in range(8):
        writer = child(WRITE_FOR_EVER, path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        time.sleep(pause.uniform(0, 0.03))
        writer.kill()
        writer.communicate()
        choices = Store(path).export()  # without a warning
        assert len(choices) == 500
        assert len({choice["round"] for choice in choices.values()}) == 1
        assert_sound(path)


def forked(work: Callable[[], object]) -> int:
    """The exit status of a fork that does work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is the point
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_parent_and_fork_go_on_with_one_store(path: Path) -> None:
    made = Store(path)
    made.put("before", CHOICE)

    def work() -> bool:
        made.put("child", CHOICE)
        return made.get("before") == made.get("child") == CHOICE

    assert forked(work) == 0
    made.put("parent", CHOICE)
    assert list(made.export()) == ["before", "child", "parent"]


FORK_BESIDE_THREADS = """
import os, sys, threading, warnings
from cudnn_ct.autotune.store import Store

warnings.simplefilter("ignore", DeprecationWarning)
store = Store(sys.argv[1], timeout=60)
store.put("key", {"a": 1})
done = threading.Event()

def work(number):
    while not done.is_set():
        store.put(f"thread {number}", {"a": 1})
        store.get("key")

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
bad = 0
for number in range(40):
    pid = os.fork()
    if pid == 0:
        store.put(f"fork {number}", {"a": number})
        os._exit(0 if store.get("key") and store.get(f"fork {number}") else 1)
    bad += os.waitpid(pid, 0)[1]
done.set()
for thread in threads:
    thread.join()
assert not bad and len(store.export()) == 45, (bad, len(store.export()))
"""


def test_forks_while_other_threads_read_and_write(path: Path) -> None:
    finish(child(FORK_BESIDE_THREADS, path))
    assert_sound(path)


# --- whatever is wrong with the file -----------------------------------------------------------------------


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that connections were willing to wait."""
    seen: list[float] = []
    connect = sqlite3.connect

    def recorded(*args: Any, timeout: float, **options: Any) -> sqlite3.Connection:
        seen.append(timeout)
        return connect(*args, timeout=timeout, **options)

    monkeypatch.setattr(sqlite3, "connect", recorded)
    return seen


def test_truncated_at_any_length(full: Store, tmp_path: Path) -> None:
    assert full.path is not None
    content, choices = full.path.read_bytes(), full.export()
    short = tmp_path / "short"
    lengths = {*range(0, 130, 9), *range(0, len(content), 811), *range(4000, 4200, 30), len(content) - 1}
    for length in sorted(lengths):
        short.write_bytes(content[:length])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            made = Store(short)
            for key, choice in list(choices.items())[::40]:
                assert made.get(key) in (None, choice), (length, key)
            assert use(made) is None
        assert len(seen) <= 1, (length, [str(warning.message) for warning in seen])
        assert {warning.category for warning in seen} <= {CudnnWarning}
        assert length == 0 or length > 4096 or seen, length
        Path(f"{short}-journal").unlink(missing_ok=True)


def test_damaged_anywhere(full: Store, tmp_path: Path) -> None:
    assert full.path is not None
    content, rng, damaged = full.path.read_bytes(), random.Random(1), tmp_path / "damaged"
    for _ in range(150):
        changed = bytearray(content)
        start = rng.choice((rng.randrange(200), rng.randrange(len(content))))
        for place in range(start, min(start + rng.choice((1, 4, 500)), len(content))):
            changed[place] = rng.randrange(256)
        damaged.write_bytes(changed)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert use(Store(damaged)) is None
        assert len(seen) <= 1, [str(warning.message) for warning in seen]
        for rest in tmp_path.glob("damaged-*"):
            rest.unlink()


@pytest.mark.parametrize(
    "content", [b"xy", b"garbage " * 1000, bytes(5000), b"SQLite format 3\0" + b"x" * 5000]
)
def test_no_database(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    made = Store(file)
    with one_warning(rf"{file} cannot be read: .*remove the file"):
        assert use(made) is None
    assert file.read_bytes() == content
    assert made.load({"key": CHOICE}) == 0


def test_what_was_unreadable_stays_off_in_this_process(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"garbage " * 100)
    made = Store(file)
    with one_warning("not a database"):
        made.put("key", CHOICE)
    file.unlink()
    use(made)
    assert not file.exists()
    Store(file).put("key", CHOICE)
    assert Store(file).get("key") == CHOICE


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with one_warning(f"{tmp_path} cannot be read"):
        assert use(Store(tmp_path)) is None


def test_a_newer_version_has_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    sql(file, "CREATE TABLE algo_cache_3 (a, b, c)", "INSERT INTO algo_cache_3 VALUES (1, 2, 3)")
    made = Store(file)
    assert made.get("key") is None
    assert made.export() == {}
    made.put("key", CHOICE)
    assert made.get("key") == CHOICE
    assert sql(file, "SELECT * FROM algo_cache_3") == [(1, 2, 3)]


def test_a_table_of_an_earlier_version_is_ignored_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    sql(file, "CREATE TABLE choices_1 (key TEXT PRIMARY KEY, choice TEXT)")
    with one_warning("no such table: algo_cache_2; choices_1, the table of an earlier version, is ignored"):
        assert Store(file).get("key") is None
    made = Store(file)
    made.put("key", CHOICE)
    assert made.get("key") == CHOICE


def test_a_table_of_other_columns(tmp_path: Path) -> None:
    file = tmp_path / "file"
    sql(file, "CREATE TABLE algo_cache_2 (a, b, c)")
    with one_warning("cannot be read: algo_cache_2 is not the table that cudnn_ct makes"):
        assert use(Store(file)) is None


BAD_TEXTS = ("'{'", "'[1]'", "'7'", "'null'", "''", "NULL", "7", "x'ff'", "CAST(x'7bff7d' AS TEXT)")


@pytest.mark.parametrize("text", [*BAD_TEXTS, f"'{'[' * 100_000}'"], ids=lambda text: text[:24])
def test_a_row_that_is_no_json_object(full: Store, text: str) -> None:
    assert full.path is not None
    sql(full.path, f"INSERT INTO algo_cache_2 VALUES ('bad', {text})")
    with one_warning("has a row that is not a JSON object"):
        assert full.get("bad") is None
        assert full.get("bad") is None
        assert "bad" not in full.export()
    assert len(full.export()) == 200
    full.put("bad", CHOICE)
    assert full.get("bad") == CHOICE


@pytest.mark.parametrize("key", ["NULL", "x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_row_whose_key_is_no_text(full: Store, key: str) -> None:
    assert full.path is not None
    sql(full.path, f"INSERT INTO algo_cache_2 VALUES ({key}, '{{}}')")
    with one_warning("has a row"):
        assert len(full.export()) == 200


# Root may write anywhere, so the tests of what may not be written become somebody else.


@pytest.fixture
def kept() -> Iterator[Path]:
    """An algorithm cache in a folder that anybody may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    Store(folder / "choices").put("key", CHOICE)
    if os.geteuid() == 0:
        os.chown(folder / "choices", SOMEBODY, SOMEBODY)
    yield folder / "choices"
    folder.chmod(0o777)
    shutil.rmtree(folder)


@pytest.fixture
def as_somebody(kept: Path) -> Iterator[None]:
    try:
        if os.geteuid() == 0:
            os.seteuid(SOMEBODY)
        kept.stat()
    except OSError as error:
        os.seteuid(os.getuid())
        pytest.skip(f"runs as root, and cannot become somebody else: {error}")
    yield
    os.seteuid(os.getuid())


def assert_read_only(made: Store) -> None:
    assert made.get("key") == CHOICE
    with one_warning("cannot be written"):
        use(made)
        made.clear()
    assert made.export() == {"key": CHOICE}


def test_a_read_only_folder(kept: Path, as_somebody: None) -> None:
    with as_owner():
        kept.parent.chmod(0o555)
    assert_read_only(Store(kept))
    with one_warning("cannot be written"):
        assert use(Store(kept.parent / "new")) is None
    with one_warning("cannot be written"):
        assert use(Store(kept.parent / "new folder" / "new")) is None


def test_a_file_that_may_not_be_read(kept: Path, as_somebody: None) -> None:
    with as_owner():
        kept.chmod(0)
    with one_warning("cannot be read: unable to open"):
        assert use(Store(kept)) is None


@contextmanager
def as_owner() -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(os.getuid())
    yield
    os.seteuid(before)


@pytest.mark.parametrize("first", ["get", "put"])
def test_a_locked_file_is_waited_for_once(path: Path, timeouts: list[float], first: str) -> None:
    Store(path).put("key", CHOICE)
    made = Store(path, timeout=0.05)
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        del timeouts[:]
        with one_warning("database is locked"):
            assert made.get("key") is None if first == "get" else made.put("put", CHOICE) is None
            use(made)
        assert timeouts[0] == 0.05
        assert set(timeouts[1:]) == {0}
        other.execute("COMMIT")
    assert made.get("key") == CHOICE
    made.put("later", CHOICE)
    assert list(made.export()) == ["key", "later"]


def test_a_writer_waits_for_another(path: Path) -> None:
    made = Store(path, timeout=60)
    made.put("key", CHOICE)
    thread = threading.Thread(target=made.put, args=("new", CHOICE))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        thread.start()
        time.sleep(0.05)
        other.execute("COMMIT")
    thread.join()
    assert made.get("new") == CHOICE


def test_a_full_disk(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full.path is not None
    connect = sqlite3.connect

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*args, **options)
        database.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size instead
        return database

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with one_warning("cannot be written: database or disk is full"):
            for number in range(100):
                full.put(f"new {number}", {"text": "x" * 1000})
        assert full.get("key 7") == {"number": 7, "text": "x" * 200}
    assert_sound(full.path)


# --- the store of the process ------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and a process that has not asked for its store yet."""
    testing.reset()
    monkeypatch.setattr(config, "algo_cache", None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_default_is_in_the_users_cache_folder(home: Path) -> None:
    made = store()
    assert made.path is not None
    assert made.path.name == "algo_cache.sqlite"
    assert home in made.path.parents
    assert "cudnn_ct" in made.path.parts
    assert list(home.iterdir()) == []
    made.put("key", CHOICE)
    assert made.path.is_file()


def test_one_store_for_each_setting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = store()
    assert store() is default
    monkeypatch.setattr(config, "algo_cache", "~/mine")
    mine = store()
    assert mine.path == home / "mine"
    monkeypatch.setattr(config, "algo_cache", home / "other")
    assert store().path == home / "other"
    monkeypatch.setattr(config, "algo_cache", "off")
    assert store().path is None
    monkeypatch.setattr(config, "algo_cache", "~/mine")
    assert store() is mine


def assert_off(words: str) -> None:
    with one_warning(words):
        assert use(store()) is None
        assert use(store()) is None
    assert store().path is None


def test_without_a_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*args: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert_off("kept in a file: .*home")
    monkeypatch.setattr(config, "algo_cache", "~/mine")
    assert_off("kept in a file: .*home")


@pytest.mark.parametrize("module", ["platformdirs", "sqlite3"])
def test_without_a_module(home: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert_off(f"kept in a file: .*{module}")


def test_the_module_is_imported_without_what_it_needs_later() -> None:
    code = (
        "import sys, cudnn_ct.autotune.store; sys.exit(bool({'sqlite3', 'platformdirs'} & set(sys.modules)))"
    )
    finish(child(code))


# --- choices for a fleet -----------------------------------------------------------------------------------


def test_export_and_import(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = {"b": CHOICE, "größer": {}, "a": {"x": [1, None, True, 0.1]}}
    store().load(choices)
    file = home / "fleet.json"
    assert export_algo_cache(file) == 3
    assert json.loads(file.read_text()) == {"format": "cudnn_ct algo_cache 2", "entries": choices}

    monkeypatch.setattr(config, "algo_cache", home / "other")
    store().put("a", {"replaced": True})
    store().put("mine", {})
    assert import_algo_cache(str(file)) == 3
    assert store().export() == {**choices, "mine": {}}


def test_without_a_file_nothing_is_exported_or_imported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "fleet.json"
    assert export_algo_cache(file) == 0
    assert import_algo_cache(file) == 0
    file.write_text(json.dumps({"format": autotune_store.FORMAT, "entries": {"key": CHOICE}}))
    monkeypatch.setattr(config, "algo_cache", "off")
    assert import_algo_cache(file) == 0
    with pytest.raises(FileNotFoundError, match="nothing"):
        import_algo_cache(home / "nothing.json")


def test_an_export_is_whole_or_not_at_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store().load({str(number): CHOICE for number in range(50)})
    file, link = home / "fleet.json", home / "link.json"
    link.symlink_to(file)
    assert export_algo_cache(link) == 50
    assert link.is_symlink()
    before, write = file.read_bytes(), Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        write(path, text[:100], **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            export_algo_cache(file)
    assert file.read_bytes() == before
    assert sorted(one.name for one in home.glob("*.json*")) == ["fleet.json", "link.json"]
    assert not list(home.glob(".*json*"))
    assert export_algo_cache("/dev/null") == 50


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b'{"format": "cudnn_ct choi', "Unterminated"),
        (b"\x80\x04N.", "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "cudnn_ct algo_cache 2"),
        (b'{"entries": {}}', "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 3", "entries": {}}', "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 2"}', "entries"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": []}', "mapping"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": {"good": {}, "bad": 7}}', "'bad' is a dict.*not 7"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": {"good": {}, "bad": {"a": NaN}}}', "'bad' cannot"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_file_is_named_and_not_imported(home: Path, content: bytes, why: str) -> None:
    file = home / "fleet.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why) as caught:
        import_algo_cache(file)
    assert str(file) in str(caught.value)
    assert store().export() == {}


# --- files made to keep a process busy or to fill its memory -----------------------------------------------

LIMITED = """
import resource, sys, time, warnings
from cudnn_ct.autotune.store import Store
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
warnings.simplefilter("ignore")
store, start = Store(sys.argv[1]), time.monotonic()
assert store.get("key") is None and store.export() == {}
store.put("key", {})
store.load({"key": {}})
store.clear()
assert time.monotonic() - start < 15, "the file kept this process busy"
"""


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_store_gives_a_hostile_file_up_within_limits(tmp_path: Path, name: str) -> None:
    """1 GiB of memory; a few seconds, and only once, because the store then stops using the file."""
    path = tmp_path / "file"
    HOSTILE[name](path)
    assert path.stat().st_size < 20_000
    finish(child(LIMITED, path))


def test_store_gives_a_hostile_file_up_with_a_warning(tmp_path: Path) -> None:
    HOSTILE["a recursive view"](tmp_path / "file")
    with one_warning("algo_cache_2 is not the table that cudnn_ct makes"):
        assert use(Store(tmp_path / "file")) is None
