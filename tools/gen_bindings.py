"""Write ``cudnn_ct/_bindings/`` from the headers of the installed cuDNN.

    python tools/gen_bindings.py                 write the modules
    python tools/gen_bindings.py --check         print a diff and exit 1 if the modules are out of date
    python tools/gen_bindings.py --include DIR   exit 1 if the headers of another cuDNN differ

``--check`` needs the version that the modules were made from, and exits with 2 for any other version.
``bindings.toml`` has the facts that headers lack. The output has names, numbers and types, but not NVIDIA's
comments.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from bindings_text import FLOOR, packed, render
from cudnn_headers import Api, BindingsError, read_api

OUTPUT = Path(__file__).resolve().parent.parent / "cudnn_ct" / "_bindings"
VERSION = re.compile(r"_(MAJOR|MINOR|PATCH|PATCHLEVEL|VERSION|SM_\w+_NUMBER)$")  # constants of a release
UNDATED = 0  # first version of a struct: only its members and functions have dates


def main() -> int:
    parser = argparse.ArgumentParser(description="write cudnn_ct/_bindings from cuDNN's headers")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="print a diff instead of writing the modules")
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
    """Return the include directory of the cuDNN in this environment."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudnn")
    if not found:
        raise BindingsError("cuDNN headers not found; install nvidia-cudnn-cu12, or pass --include DIR")
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
            f"the modules were made from {made_from}, but {api.version} is installed; run: "
            f'pip install --no-deps "nvidia-cudnn-cu12=={wheel}"'
        )
    text = diff(render(api, notes))
    print(text or f"{OUTPUT}: up to date with the headers of {api.version}")
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
    """Return a diff of the existing modules and the new ones."""
    old = {path.name: path.read_text() for path in OUTPUT.glob("*.py")}
    lines: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = (texts.get(name, "").splitlines(keepends=True) for texts in (old, new))
        lines += difflib.unified_diff(before, after, f"committed/{name}", f"headers/{name}")
    return "".join(lines)


def compare(theirs: Api, notes: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences of other headers from our modules, and the symbols that only they have.

    A struct that has grown is a difference, because cuDNN would read past the end of ours. [since] dates the
    members that older headers do not have. Callbacks and constants, such as the largest number of dimensions,
    are compared too.
    """
    ours, others = our_symbols(notes["since"], theirs.version), their_symbols(theirs)
    additions = [f"{name} is only in {theirs.version}" for name in others if name not in ours]
    differences: list[str] = []
    for name in (name for name in ours if name not in notes["sentinels"]):
        if text := difference(*ours[name], others.get(name), theirs.version):
            differences.append(f"{name}: {text}")
    return differences, additions


def difference(first: int, what: str, other: str | None, version: int) -> str:
    """Return the difference of a symbol in another version from ours, or an empty string."""
    if other is None:
        return f"{version} lacks it, expected since {first}" if UNDATED < first <= version else ""
    if other != what:
        return f"{version} has {other}, expected {what}"
    return f"{version} has it, expected since {first}" if first > version else ""


def our_symbols(since: dict[str, str], version: int) -> dict[str, tuple[int, str]]:
    """Return the first version and the comparable text of each symbol of the modules, by its C name."""
    enums, functions, types = load("enums"), load("functions"), load("types")
    found = {name: (p.since, signature(p.restype, *p.argtypes)) for name, p in functions.FUNCTIONS.items()}
    for cls, (_, prefix) in enums.C_NAMES.items():
        for name, value in getattr(enums, cls).__members__.items():
            c_name = enums.IRREGULAR.get(f"{cls}.{name}") or prefix + name
            found[c_name] = (enums.SINCE.get(f"{cls}.{name}", FLOOR), str(int(value)))
    found |= {name: (UNDATED, str(value)) for name, value in sizes(vars(load("constants"))).items()}
    for name, struct in vars(types).items():
        if is_callback(struct):
            found[name] = (UNDATED, signature(struct._restype_, *struct._argtypes_))
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
    """Return the comparable text of each symbol of an API read from headers, by its C name."""
    names = {**vars(ctypes), **vars(load("types"))}
    found = {f.name: signature(*evaluate([f.restype, *f.args.values()], names)) for f in theirs.functions}
    found |= {name: str(value) for name, value in theirs.values.items()}
    found |= {name: str(value) for name, value in sizes(theirs.constants).items()}
    for name, (kind, *fields) in theirs.types.items():
        if kind == "callback":
            found[name] = signature(*evaluate(fields, names))
        if kind in ("Struct", "Union"):
            found[name] = layout(evaluate(fields, names))
    return found


def sizes(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants that sizes of arrays and values of arguments depend on: all but the versions."""
    return {
        name: value
        for name, value in constants.items()
        if name.startswith("CUDNN_") and not VERSION.search(name)
    }


def is_callback(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, ctypes._CFuncPtr)  # type: ignore[attr-defined]


def signature(restype: Any, *argtypes: Any) -> str:
    return f"{type_name(restype)} ({', '.join(map(type_name, argtypes))})"


def layout(fields: Iterable[tuple[str, Any]]) -> str:
    return f"{{{', '.join(f'{type_name(ctype)} {name}' for name, ctype in fields)}}}"


def type_name(ctype: Any) -> str:
    return "void" if ctype is None else str(ctype.__name__)


def evaluate(expressions: list[str], names: dict[str, Any]) -> list[Any]:
    """Evaluate ctypes expressions. Create an empty struct for a type that only the other version has."""
    for name in set(re.findall(r"\bcudnn\w+_t\b", " ".join(expressions))) - names.keys():
        names[name] = type(name, (ctypes.Structure,), {})
    return [eval(expression, names) for expression in expressions]


def load(module: str) -> ModuleType:
    """Import a generated module without the package, which may be broken at this time."""
    if OUTPUT.name not in sys.modules:
        spec = importlib.util.spec_from_file_location(OUTPUT.name, OUTPUT / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[OUTPUT.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[OUTPUT.name])
    return importlib.import_module(f"{OUTPUT.name}.{module}".rstrip("."))


if __name__ == "__main__":
    sys.exit(main())
