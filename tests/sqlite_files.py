"""SQLite files that are small and made to keep a reader busy, or to fill its memory."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

__all__ = ["HOSTILE"]

PAGE = 512
TABLE = "CREATE TABLE algo_cache_2 (key TEXT PRIMARY KEY, entry TEXT)"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
DEPTH = 8  # levels of pages with about 70 children each: 70**8 leaves


def _sql(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            for statement in (f"PRAGMA page_size = {PAGE}", *statements):
                database.execute(statement)

    return make


def _rows_without_end(path: Path) -> None:
    """The pages of the table form a tree whose branches share their pages."""
    _sql(TABLE, "INSERT INTO algo_cache_2 VALUES ('', '')")(path)
    data = bytearray(path.read_bytes())
    leaf = bytes(data[PAGE : 2 * PAGE])
    first = len(data) // PAGE + 1
    data[PAGE : 2 * PAGE] = _branch(first)
    _write(path, data, _levels(first), leaf)


def _schema_without_end(path: Path) -> None:
    """The same tree for the schema, which is read before any statement; it repeats one index."""
    _sql(TABLE)(path)
    data = bytearray(path.read_bytes())
    index_at, table_at = sorted(struct.unpack_from(">HH", data, 108))
    index, table = bytes(data[index_at:table_at]), bytes(data[table_at:PAGE])
    first = len(data) // PAGE + 1
    data[100:PAGE] = _branch(first + 1, first, offset=100)
    _write(path, data, _leaf(table, index), _levels(first + 1), _leaf(index))


def _branch(child: int, first: int | None = None, offset: int = 0) -> bytes:
    """A page whose children are all one page, except perhaps the first."""
    count = (PAGE - offset - 12) // 7 - 1
    starts = [PAGE - 5 * (count - place) for place in range(count)]
    head = struct.pack(">BHHHBI", 5, 0, count, starts[0], 0, child) + struct.pack(f">{count}H", *starts)
    cells = b"".join(struct.pack(">IB", page, 1) for page in [first or child] + [child] * (count - 1))
    return head.ljust(PAGE - offset - len(cells), b"\0") + cells


def _levels(first: int) -> bytes:
    """Branches at the page ``first`` and after, each with the next page as its only child."""
    return b"".join(_branch(first + level + 1) for level in range(DEPTH))


def _leaf(*cells: bytes) -> bytes:
    starts = [PAGE - sum(map(len, cells[place:])) for place in range(len(cells))]
    head = struct.pack(">BHHHB", 13, 0, len(cells), starts[0], 0) + struct.pack(f">{len(cells)}H", *starts)
    return head.ljust(starts[0], b"\0") + b"".join(cells)


def _write(path: Path, data: bytearray, *pages: bytes) -> None:
    data += b"".join(pages)
    struct.pack_into(">I", data, 28, len(data) // PAGE)
    path.write_bytes(data)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a recursive view": _sql(
        f"CREATE VIEW algo_cache_2 AS {ENDLESS} SELECT 'k' || i AS key, '{{}}' AS entry FROM n"
    ),
    "a recursive view of no rows": _sql(
        f"CREATE VIEW algo_cache_2 AS {ENDLESS} SELECT '' AS key, '{{}}' AS entry FROM n WHERE i < 0"
    ),
    "a recursive view in capitals": _sql(
        f"CREATE VIEW ALGO_CACHE_2 AS {ENDLESS} SELECT i AS key, i AS entry FROM n"
    ),
    "a recursive trigger": _sql(
        TABLE,
        f"CREATE VIEW endless AS {ENDLESS} SELECT count(*) FROM n",
        "CREATE TRIGGER hang BEFORE INSERT ON algo_cache_2 BEGIN SELECT * FROM endless; END",
    ),
    "rows without an end": _rows_without_end,
    "a schema without an end": _schema_without_end,
}
