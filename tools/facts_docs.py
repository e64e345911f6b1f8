"""Write the tables of docs/facts.md, and that of versions in docs/support.md, from cudnn_ct/facts.json.

python tools/facts_docs.py           # write the tables
python tools/facts_docs.py --check   # exit 1 if they are out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, VERSIONS = ROOT / "docs" / "facts.md", ROOT / "docs" / "support.md"
sys.path.insert(0, str(ROOT))

from cudnn_ct._bindings.enums import SINCE  # noqa: E402
from cudnn_ct._bindings.functions import FUNCTIONS  # noqa: E402
from cudnn_doctor.read.versions import table, version_numbers  # noqa: E402

# The parts of the page, each with the kinds of its rows.
PARTS = {
    "rejections": ("reject", "engine", "first_choice", "modes", "unordered", "stored"),
    "rewrites": ("rewrite",),
    "warnings": ("warn", "inform"),
    "order": ("first", "last", "also", "cost"),
}

FIRST, NEWEST = 19, 28  # minor versions of docs/support.md; facts may begin or end with newer ones
WRONG = ("wrong", "inaccurate", "crash", "hang", "unsupported")  # effects that it lists


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    blocks: dict[str, str] = {}
    for name, kinds in PARTS.items():
        rows = [row for row in table() if row["kind"] in kinds]
        blocks[name] = "\n".join(_order(rows) if name == "order" else _facts(rows))
    pages = [(PAGE, blocks), (VERSIONS, {"versions": "\n".join(_versions())})]
    return max(_written(page, parts, check=options.check) for page, parts in pages)


def _written(path: Path, blocks: dict[str, str], *, check: bool) -> int:
    """Write the blocks of a page; with ``check``, return 1 if it has others."""
    page = written = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        pattern = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
        written = re.sub(pattern, rf"\1\n{_escaped(block)}\n\n\2", written, flags=re.DOTALL)
    if check:
        return int(written != page)
    path.write_text(written, encoding="utf-8")
    return 0


def _escaped(block: str) -> str:
    """Return a text that stands for itself in a replacement."""
    return block.replace("\\", "\\\\")


def _facts(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| name | operations | cuDNN, GPUs | problems | engines | effect |"
    yield "|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: (row["operations"], row["name"])):
        cells = (
            f"`{row['name']}`",
            ", ".join(f"`{name}`" for name in row["operations"]),
            _range(row),
            "; ".join(row["when"]) or "all",
            _engines(row),
            f"{row['effect']}: {row['message']}{_source(row)}",
        )
        yield _line(*cells)


def _order(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| kind | operations | problems | engines, in their order |"
    yield "|---|---|---|---|"
    for row in rows:
        sizes = [f"{name} {value}".replace("_", " ") for name, value in row.get("sizes", {}).items()]
        problems = "; ".join([*(one for one in row["when"] if not one.startswith("no operations")), *sizes])
        names = ", ".join(f"`{name}`" for name in row["operations"])
        yield _line(row["kind"], names, problems, ", ".join(row["order"]))


def _versions() -> Iterator[str]:
    """Yield a row for each minor version: the facts that begin and end with it, and what its headers add."""
    yield "| cuDNN | no longer | from this version on | new in its headers |"
    yield "|---|---|---|---|"
    rows = [row for row in table() if row.get("effect") in WRONG and "operations" in row]
    bounds = [_minor(row, bound) for row in rows for bound in ("from", "before")]
    for minor in range(FIRST, max(NEWEST, *bounds) + 1):
        began = [row for row in rows if _minor(row, "from") == minor]
        ended = [row for row in rows if _minor(row, "before") == minor and row not in began]
        yield _line(f"9.{minor}", _names(ended), _names(began), _new(minor))


def _minor(row: dict[str, Any], bound: str) -> int:
    """Return the minor version of cuDNN 9 at which a fact begins or ends; -1 if it has no such bound."""
    text = row.get("cudnn", {}).get(bound)
    major, minor, *_ = (*version_numbers(text), 0) if text else (0, -1)
    return minor if major == 9 else -1


def _names(rows: list[dict[str, Any]]) -> str:
    return "; ".join(f"`{row['name']}` ({_range(row)}): {row['message']}" for row in rows) or "-"


def _new(minor: int) -> str:
    """Return the functions that a version introduced, and the number of values of each enum."""
    functions = [name for name, one in FUNCTIONS.items() if one.since // 100 == 900 + minor]
    enums = Counter(name.partition(".")[0] for name, since in SINCE.items() if since // 100 == 900 + minor)
    parts = [f"`{name}`" for name in functions] + [f"{values} of `{name}`" for name, values in enums.items()]
    return ", ".join(parts) or "-"


def _line(*cells: str) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', '/').replace('*', _ESCAPED_STAR) for cell in cells)} |"


_ESCAPED_STAR = chr(92) + "*"


def _range(row: dict[str, Any]) -> str:
    parts = [_bounds(row.get("cudnn", {})) or "all"]
    if row.get("arch"):
        parts.append(f"compute capability {_bounds(row['arch'])}")
    if "libraries" in row:
        parts.append(f"{row['libraries']} libraries")
    return ", ".join(parts)


def _bounds(bounds: dict[str, str]) -> str:
    parts = [f"from {bounds['from']}"] if "from" in bounds else []
    parts += [f"before {bounds['before']}"] if "before" in bounds else []
    return " ".join(parts)


def _engines(row: dict[str, Any]) -> str:
    parts = [str(number) for number in row.get("engines", ())]
    parts += [f"`{name}`" for name in row.get("algorithms", ())]
    parts += [f"plans whose kernels are named `{row['kernels']}`"] if "kernels" in row else []
    parts += [f"with the note `{note}`" for note in row.get("with_notes", ())]
    parts += [f"without the note `{note}`" for note in row.get("without_notes", ())]
    parts += [f"all but {', '.join(map(str, row['engines_except']))}"] if "engines_except" in row else []
    parts += [f"mode {mode}" for mode in row.get("modes", ())]
    parts += [
        f"knob {knob} of {', '.join(map(str, values))}" for knob, values in row.get("knobs", {}).items()
    ]
    parts += [f"more than {row['min_slices'] - 1} slices"] if "min_slices" in row else []
    return ", ".join(parts) or "all"


def _source(row: dict[str, Any]) -> str:
    source = row.get("source", "")
    if source.startswith("https://"):
        return f" ([source]({source}))"
    found = row.get("found")
    if not found:
        return f" ({source})" if source else ""
    earlier = f", not with {found['not_in']}" if "not_in" in found else ""
    return f" (measured with cuDNN {found['cudnn']} on {found['gpu']}{earlier})"


if __name__ == "__main__":
    sys.exit(main())
