"""The algorithm cache on disk: concurrent users, bad files, and export."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
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
    """Do all that a store can, twice; return its entry for a key that was never put."""
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


def test_store_returns_a_copy_of_the_newest_entry(path: Path) -> None:
    made = Store(str(path))
    made.put("key", {"a": 1})
    made.put("key", CHOICE)
    found = Store(path).get("key")
    assert found == CHOICE
    found["engine"] = 99
    assert made.get("key") == CHOICE
    assert made.get("another key") is None


def test_store_takes_any_text_as_key(path: Path) -> None:
    keys = ["before", "", "größer × 3", "畳み込み", "🙂", "a\0b", "'; DROP TABLE algo_cache_2", "x" * 9999]
    made = Store(path)
    for key in keys:
        made.put(key, CHOICE)
        assert made.get(key) == CHOICE
    assert made.export() == dict.fromkeys(keys, CHOICE)


def test_store_makes_its_file_by_the_first_entry_in_the_folder_of_its_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Store("folder/choices")
    monkeypatch.chdir("/")
    assert made.get("key") is None
    assert made.export() == {}
    made.clear()
    assert list(tmp_path.iterdir()) == []
    made.put("key", CHOICE)
    assert made.path == tmp_path / "folder" / "choices"
    assert made.path.is_file()


def test_store_without_a_path_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sqlite3, "connect", None)
    made = Store(None)
    assert use(made) is None
    made.clear()
    assert made.export() == {}
    assert made.load({"key": CHOICE}) == 0
    assert list(tmp_path.iterdir()) == []


def test_store_leaves_tables_of_other_versions(full: Store) -> None:
    assert full.path is not None
    sql(full.path, "CREATE TABLE algo_cache_3 (x)", "INSERT INTO algo_cache_3 VALUES (7)")
    full.clear()
    assert full.export() == {}
    full.put("key", CHOICE)
    assert full.get("key") == CHOICE
    assert sql(full.path, "SELECT x FROM algo_cache_3") == [(7,)]


def test_store_drops_the_oldest_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ([("key", {})], TypeError, "mapping"),
        ({1: {}}, TypeError, "key is a str, not 1"),
        ({"key": [1]}, TypeError, "'key' is a dict .*, not .1"),
        ({"key": {1: 2}}, TypeError, "'key' is a dict"),
        ({"key": {"a": {1}}}, ValueError, "'key' cannot be written as JSON.*set"),
        ({"key": {"a": float("nan")}}, ValueError, "'key' cannot be written as JSON"),
        ({"\ud800": {}}, ValueError, "cannot be written"),
    ],
)
def test_store_loads_no_entry_if_one_is_bad(path: Path, choices: Any, error: Any, words: str) -> None:
    made = Store(path)
    with pytest.raises(error, match=words):
        made.load({"good": {}, **choices} if isinstance(choices, dict) else choices)
    assert made.export() == {}


# --- concurrent users --------------------------------------------------------------------------------------

WRITE_FOR_EVER = """
import itertools, sys
from cudnn_ct.autotune.store import Store
store = Store(sys.argv[1])
for i in itertools.count():
    store.load({f"key {j}": {"round": i, "text": "x" * 300} for j in range(500)})
    print("written", flush=True)
"""


def test_store_is_whole_after_a_writer_was_killed(path: Path) -> None:
    pause = random.Random(0)
    for _ in range(5):
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


WRITE_HALF = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the transaction ends
database.execute("BEGIN")
database.execute("UPDATE algo_cache_2 SET entry = '{}'")
os._exit(0)
"""


def test_store_rolls_back_the_transaction_of_a_killed_writer(full: Store) -> None:
    before = full.export()
    finish(child(WRITE_HALF, full.path))
    assert Path(f"{full.path}-journal").stat().st_size > 0
    assert full.export() == before


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


def test_store_serves_threads_and_forks_at_once(path: Path) -> None:
    finish(child(FORK_BESIDE_THREADS, path))
    assert_sound(path)


# --- bad files ---------------------------------------------------------------------------------------------


def damaged(content: bytes) -> Iterator[bytes]:
    """Contents of a file that was cut off, or in which some bytes changed."""
    lengths = {*range(0, 130, 9), *range(0, len(content), 811), *range(4000, 4200, 30), len(content) - 1}
    yield from (content[:length] for length in sorted(lengths))
    rng = random.Random(1)
    for _ in range(150):
        changed = bytearray(content)
        start = rng.choice((rng.randrange(200), rng.randrange(len(content))))
        for place in range(start, min(start + rng.choice((1, 4, 500)), len(content))):
            changed[place] = rng.randrange(256)
        yield bytes(changed)


def test_store_gives_a_damaged_file_up_with_one_warning(full: Store, tmp_path: Path) -> None:
    assert full.path is not None
    file, whole = tmp_path / "damaged", full.path.read_bytes()
    for content in damaged(whole):
        file.write_bytes(content)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert use(Store(file)) is None
        assert len(seen) <= 1, [str(warning.message) for warning in seen]
        assert {warning.category for warning in seen} <= {CudnnWarning}
        assert seen or len(content) == 0 or len(content) > 4096
        for rest in tmp_path.glob("damaged-*"):
            rest.unlink()


@pytest.mark.parametrize("content", [b"xy", bytes(5000), b"SQLite format 3\0" + b"x" * 5000])
def test_store_leaves_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    made = Store(file)
    with one_warning(rf"{file} cannot be read: .*remove the file"):
        assert use(made) is None
    assert file.read_bytes() == content
    assert made.load({"key": CHOICE}) == 0


def test_store_stays_off_in_a_process_that_found_a_bad_file(tmp_path: Path) -> None:
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


def test_store_warns_once_where_its_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path / "file" / "new", "cannot be written"), (tmp_path, "it is a folder")):
        with one_warning(words):
            assert use(Store(path)) is None


@pytest.mark.parametrize(
    ("folder", "file", "found", "words"),
    [
        (0o555, 0o644, CHOICE, "cannot be written"),
        (0o777, 0o444, CHOICE, "cannot be written"),
        (0o777, 0, None, "cannot be read: unable to open"),
    ],
    ids=["read-only folder", "read-only file", "unreadable file"],
)
def test_store_warns_once_where_the_user_lacks_permission(
    folder: int, file: int, found: Any, words: str
) -> None:
    user, nobody = os.geteuid(), 65534
    with tempfile.TemporaryDirectory() as name:  # other users may not enter `tmp_path`
        path = Path(name) / "choices"
        Store(path).put("key", CHOICE)
        if user == 0:
            os.chown(path, nobody, nobody)
        path.chmod(file)
        path.parent.chmod(folder)
        try:
            if user == 0:
                os.seteuid(nobody)  # root may read and write any file
            made = Store(path)
            with one_warning(words):
                use(made)
                made.clear()
                assert made.get("key") == found
        finally:
            os.seteuid(user)
            path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "choices_1 (key TEXT PRIMARY KEY, choice TEXT)",
            "choices_1, the table of an earlier version, is ignored",
        ),
        ("algo_cache_2 (a, b, c)", "cannot be read: algo_cache_2 is not the table that cudnn_ct makes"),
    ],
)
def test_store_ignores_another_table_with_one_line(tmp_path: Path, table: str, words: str) -> None:
    file = tmp_path / "file"
    sql(file, f"CREATE TABLE {table}")
    with one_warning(words):
        assert Store(file).get("key") is None
    if "choices_1" in table:
        Store(file).put("key", CHOICE)
        assert Store(file).get("key") == CHOICE


BAD_ROWS = [
    ("'bad'", text) for text in ("'{'", "'[1]'", "''", "NULL", "7", "x'ff'", "CAST(x'7bff7d' AS TEXT)")
]
BAD_ROWS += [("'bad'", f"'{'[' * 100_000}'"), ("NULL", "'{}'"), ("CAST(x'ff' AS TEXT)", "'{}'")]


@pytest.mark.parametrize(("key", "text"), BAD_ROWS, ids=lambda text: text[:24])
def test_store_skips_a_bad_row(full: Store, key: str, text: str) -> None:
    assert full.path is not None
    sql(full.path, f"INSERT INTO algo_cache_2 VALUES ({key}, {text})")
    with one_warning("has a row that is not a JSON object"):
        assert len(full.export()) == 200
        assert full.get("bad") is None
    full.put("bad", CHOICE)
    assert full.get("bad") == CHOICE


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that connections were willing to wait."""
    seen: list[float] = []
    connect = sqlite3.connect

    def recorded(*args: Any, timeout: float, **options: Any) -> sqlite3.Connection:
        seen.append(timeout)
        return connect(*args, timeout=timeout, **options)

    monkeypatch.setattr(sqlite3, "connect", recorded)
    return seen


@pytest.mark.parametrize("first", ["get", "put"])
def test_store_waits_for_a_locked_file_once(path: Path, timeouts: list[float], first: str) -> None:
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


def test_store_waits_for_another_writer(path: Path) -> None:
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


def test_store_reads_on_a_full_disk(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_store_has_one_file_for_each_setting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = store()
    assert store() is default
    assert default.path is not None
    assert home in default.path.parents
    assert default.path.parts[-2:] == ("cudnn_ct", "algo_cache.sqlite")
    paths = {"~/mine": home / "mine", home / "other": home / "other", "off": None}
    stores = {}
    for setting, wanted in paths.items():
        monkeypatch.setattr(config, "algo_cache", setting)
        stores[setting] = store()
        assert stores[setting].path == wanted
    monkeypatch.setattr(config, "algo_cache", "~/mine")
    assert store() is stores["~/mine"]
    assert list(home.iterdir()) == []


def assert_off(words: str) -> None:
    with one_warning(words):
        assert use(store()) is None
        assert use(store()) is None
    assert store().path is None


def test_store_is_off_without_a_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_home(*args: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", without_home)
    assert_off("kept in a file: .*home")
    monkeypatch.setattr(config, "algo_cache", "~/mine")
    assert_off("kept in a file: .*home")


@pytest.mark.parametrize("module", ["platformdirs", "sqlite3"])
def test_store_is_off_without_a_module(home: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert_off(f"kept in a file: .*{module}")


def test_store_imports_its_modules_at_first_use() -> None:
    code = (
        "import sys, cudnn_ct.autotune.store; sys.exit(bool({'sqlite3', 'platformdirs'} & set(sys.modules)))"
    )
    finish(child(code))


# --- export and import -------------------------------------------------------------------------------------


def test_import_replaces_entries_by_exported_ones(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_export_and_import_without_a_file_move_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "fleet.json"
    assert export_algo_cache(file) == 0
    assert import_algo_cache(file) == 0
    file.write_text(json.dumps({"format": autotune_store.FORMAT, "entries": {"key": CHOICE}}))
    monkeypatch.setattr(config, "algo_cache", "off")
    assert import_algo_cache(file) == 0
    with pytest.raises(FileNotFoundError, match="nothing"):
        import_algo_cache(home / "nothing.json")


def test_export_writes_a_file_as_a_whole_or_not_at_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (b'{"format": "cudnn_ct choi', "Unterminated"),
        (b"\x80\x04N.", "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 3", "entries": {}}', "cudnn_ct algo_cache 2"),
        (b'{"format": "cudnn_ct algo_cache 2"}', "entries"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": []}', "mapping"),
        (b'{"format": "cudnn_ct algo_cache 2", "entries": {"good": {}, "bad": 7}}', "'bad' is a dict.*not 7"),
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
