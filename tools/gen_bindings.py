"""Write ``cudnn_ct/_bindings/`` from the headers of the cuDNN that is installed.

    python tools/gen_bindings.py                 write the modules
    python tools/gen_bindings.py --check         are they what the headers say? a diff and exit 1 if not
    python tools/gen_bindings.py --include DIR   do the headers of another cuDNN agree? exit 1 if not

``--check`` needs the very version that the modules were made from, and exits with 2 on another one.
What headers do not say stands in ``bindings.toml``. The output has names, numbers and types; NVIDIA's
comments are theirs.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from bindings_text import FLOOR, packed, render
from cudnn_headers import Api, BindingsError, read_api

OUTPUT = Path(__file__).resolve().parent.parent / "cudnn_ct" / "_bindings"
UNDATED = 0  # since when, for a struct: only what takes it has a date


def main() -> int:
    parser = argparse.ArgumentParser(description="write cudnn_ct/_bindings from cuDNN's headers")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing, show what would change")
    mode.add_argument("--include", type=Path, metavar="DIR", help="compare with the headers of another cuDNN")
    options = parser.parse_args()
    notes = tomllib.loads(Path(__file__).with_name("bindings.toml").read_text())
    try:
        if options.include:
            return compare_with(options.include, notes)
        return check(notes) if options.check else write(notes)
    except BindingsError as error:
        print(f"gen_bindings: {error}", file=sys.stderr)
        return 2


def installed_headers() -> Path:
    """The include directory of the cuDNN in this environment."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudnn")
    if not found:
        raise BindingsError("found no cuDNN headers; install nvidia-cudnn-cu12, or give --include DIR")
    return Path(found)


def write(notes: dict[str, Any]) -> int:
    api = read_api(installed_headers(), notes)
    OUTPUT.mkdir(exist_ok=True)
    for name, text in render(api, notes).items():
        (OUTPUT / name).write_text(text)
    print(f"{OUTPUT}: {len(api.functions)} functions, {len(api.enums)} enums, {len(api.values)} members")
    return 0


def check(notes: dict[str, Any]) -> int:
    api, made_from = read_api(installed_headers(), notes), load("").GENERATED_FROM
    if api.version != made_from:
        wheel = f"{made_from // 10_000}.{made_from // 100 % 100}.{made_from % 100}.*"
        raise BindingsError(
            f"the modules are made from {made_from}, installed is {api.version}; "
            f'pip install --no-deps "nvidia-cudnn-cu12=={wheel}"'
        )
    text = diff(render(api, notes))
    print(text or f"{OUTPUT}: just what the headers of {api.version} say")
    return 1 if text else 0


def compare_with(include: Path, notes: dict[str, Any]) -> int:
    theirs = read_api(include, notes)
    differences, additions = compare(theirs, notes)
    for line in differences:
        print(f"difference: {line}")
    for line in additions:
        print(f"note: {line}")
    print(f"{include}: cuDNN {theirs.version}, {len(differences)} differences")
    return 1 if differences else 0


# Comparing ----------------------------------------------------------------------------------------------


def diff(new: dict[str, str]) -> str:
    """What changed from the modules that are there to the new ones."""
    old = {path.name: path.read_text() for path in OUTPUT.glob("*.py")}
    lines: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = (texts.get(name, "").splitlines(keepends=True) for texts in (old, new))
        lines += difflib.unified_diff(before, after, f"committed/{name}", f"headers/{name}")
    return "".join(lines)


def compare(theirs: Api, notes: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Compare other headers with our modules: the differences, and the symbols that only newer headers have.

    A struct that grew is a difference: cuDNN would read behind the memory of ours. [since] dates the members
    that older headers do not have.
    """
    ours, others = our_symbols(notes["since"], theirs.version), their_symbols(theirs)
    additions = [f"{name} is only in {theirs.version}" for name in others if name not in ours]
    differences: list[str] = []
    for name in (name for name in ours if name not in notes["sentinels"]):
        if text := difference(*ours[name], others.get(name), theirs.version):
            differences.append(f"{name}: {text}")
    return differences, additions


def difference(first: int, what: str, other: str | None, version: int) -> str:
    """Compare a symbol of ours with the same of another version; empty if they agree."""
    if other is None:
        return f"{version} lacks it, we say since {first}" if UNDATED < first <= version else ""
    if other != what:
        return f"{version} has {other}, we have {what}"
    return f"{version} has it, we say since {first}" if first > version else ""


def our_symbols(since: dict[str, str], version: int) -> dict[str, tuple[int, str]]:
    """Each symbol of the modules by its C name: since when, and its text to compare in a version."""
    enums, functions, types = load("enums"), load("functions"), load("types")
    found = {name: (p.since, signature(p.restype, *p.argtypes)) for name, p in functions.FUNCTIONS.items()}
    for cls, (_, prefix) in enums.C_NAMES.items():
        for name, value in getattr(enums, cls).__members__.items():
            c_name = enums.IRREGULAR.get(f"{cls}.{name}") or prefix + name
            found[c_name] = (enums.SINCE.get(f"{cls}.{name}", FLOOR), str(int(value)))
    for name, struct in vars(types).items():
        if hasattr(struct, "_fields_"):
            dates = {
                f"{name}.{member}": since.get(f"{name}.{member}", "0.0.0") for member, _ in struct._fields_
            }
            there = [
                field for field in struct._fields_ if packed(name, dates[f"{name}.{field[0]}"]) <= version
            ]
            found[name] = (UNDATED, layout(there))
    return found


def their_symbols(theirs: Api) -> dict[str, str]:
    """The same texts for an API read from headers."""
    names = {**vars(ctypes), **vars(load("types"))}
    found = {f.name: signature(*evaluate([f.restype, *f.args.values()], names)) for f in theirs.functions}
    found |= {name: str(value) for name, value in theirs.values.items()}
    for name, (kind, *fields) in theirs.types.items():
        if kind in ("Struct", "Union"):
            found[name] = layout(evaluate(fields, names))
    return found


def signature(restype: Any, *argtypes: Any) -> str:
    return f"{type_name(restype)} ({', '.join(map(type_name, argtypes))})"


def layout(fields: Iterable[tuple[str, Any]]) -> str:
    return f"{{{', '.join(f'{type_name(ctype)} {name}' for name, ctype in fields)}}}"


def type_name(ctype: Any) -> str:
    return "void" if ctype is None else str(ctype.__name__)


def evaluate(expressions: list[str], names: dict[str, Any]) -> list[Any]:
    """The objects that ctypes expressions stand for; a type that only the other version has is made up."""
    for name in set(re.findall(r"\bcudnn\w+_t\b", " ".join(expressions))) - names.keys():
        names[name] = type(name, (ctypes.Structure,), {})
    return [eval(expression, names) for expression in expressions]


def load(module: str) -> ModuleType:
    """Import a generated module without the package around it, which may be broken at the time."""
    if OUTPUT.name not in sys.modules:
        spec = importlib.util.spec_from_file_location(OUTPUT.name, OUTPUT / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[OUTPUT.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[OUTPUT.name])
    return importlib.import_module(f"{OUTPUT.name}.{module}".rstrip("."))


if __name__ == "__main__":
    sys.exit(main())
