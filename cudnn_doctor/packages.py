"""Check the installed packages: the files that pip wrote, requirements of a cuDNN, and known bad versions."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import pip, records
from .finding import Finding, Fix, Severity, finding
from .libraryset import TOOLKIT, LibrarySet, divided, write
from .read import files as _files
from .read.versions import Need, consistent, defects, meets, rows, within
from .records import OURS, Distribution, sha256, sha256_of, site_of

# --- read the requirements in the METADATA of installed packages, also those of extras of other packages ---

_HEAD = 256 << 10  # characters: the fields of METADATA precede a long description
_FEW_REQUIREMENTS = 200
_WHEEL = r"nvidia[-_.](?:cudnn[-_.]cu\d+|(?:cublas|cuda[-_.]nvrtc|cuda[-_.]runtime)(?:[-_.]cu\d+)?)"
# The wheels of cuDNN and CUDA, and packages with extras, which may require such wheels.
_REQUIRES = re.compile(
    rf"^Requires-Dist:[ \t]*(?:({_WHEEL})(?![\w.-])|([\w.-]+)(?=[ \t]*\[))[ \t]*(?:\[([^\]\n]{{0,500}})\])?"
    r"[ \t]*\(?([^;)\n]{0,200})\)?[ \t]*(?:;(.*))?$",
    re.M | re.I | re.A,
)
_COMPARISON = re.compile(r"""(\w+|'[^']*'|"[^"]*")\s*(not in|in|[<>=!~]=?=?)\s*(\w+|'[^']*'|"[^"]*")""")


class Packages:
    """The packages of a site-packages, by their canonical names."""

    def __init__(self, folders: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._folders, self._environment = folders, environment
        self._texts: dict[str, str] = {}

    def wheels(self, name: str, extras: Sequence[str] = ("",)) -> Iterator[tuple[str, str]]:
        """Yield the wheels that a package with some extras requires, and their versions.

        A requirement such as ``cuda-toolkit[cublas]`` is replaced by those of the extra, if the package is
        installed. Without that version of cuda-toolkit it is yielded itself: only its extras have versions.
        """
        todo = [(name, extra) for extra in extras]
        seen = set(todo)
        while todo:
            name, extra = todo.pop()
            for wheel, package, others, versions in requirements(self._text(name), self._environment, extra):
                if wheel:
                    yield wheel, versions
                elif package == TOOLKIT and not self._has(package, versions):
                    yield f"{package}[{','.join(others)}]", versions
                elif package in self._folders:
                    new = [(package, other) for other in others if (package, other) not in seen]
                    todo += new
                    seen.update(new)

    def _has(self, name: str, versions: str) -> bool:
        label = os.path.basename(self._folders.get(name, "")).rpartition(".dist-info")[0]
        return bool(label) and meets(label.partition("-")[2], versions)

    def _text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = _files.text_or_empty(os.path.join(self._folders[name], "METADATA"))
        return self._texts[name]


def canonical(name: str) -> str:
    """Return the name of a package or of an extra as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def requirements(
    metadata: str, environment: Mapping[str, str], extra: str = ""
) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield the requirements with one extra: a wheel or another package, its extras, its versions.

    Other packages without extras are left out: they are installed, and read on their own.
    """
    head = metadata[:_HEAD].partition("\n\n")[0]
    for wheel, package, inner, versions, marker in _REQUIRES.findall(head)[:_FEW_REQUIREMENTS]:
        if not marker or _applies(marker, {**environment, "extra": extra}):
            extras = tuple(canonical(each) for each in inner.split(",") if each.strip())
            yield canonical(wheel), canonical(package), extras, versions.replace(" ", "")


def _applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Evaluate the marker of a requirement; one that cannot be read does not apply."""

    def holds(left: str, symbol: str, right: str) -> bool:
        is_extra = "extra" in (left, right)
        left, right = (environment.get(word, word.strip("'\"")) for word in (left, right))
        if is_extra:
            left, right = canonical(left), canonical(right)
        if "in" in symbol:
            return (left in right) == (symbol == "in")
        return meets(left, symbol + right) if left[:1].isdigit() else (left == right) == (symbol == "==")

    def truth(node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(truth, node.values))
        return isinstance(node, ast.Constant) and node.value is True

    text = _COMPARISON.sub(lambda each: str(holds(*each.groups())), marker[:1000])
    try:
        return truth(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


# --- packages ----------------------------------------------------------------------------------------------

FEW = 3  # files that are reported one by one
SMALL = 1 << 20  # bytes: larger files are hashed only with --deep


def check_records(found: LibrarySet, deep: bool = False) -> Iterator[Finding]:
    """Compare every file with its record: the size, and the hash if the file is small or ``deep`` is set."""
    site = site_of(found.folder)
    real = found.recorders
    if len(real) > 1:
        text = f"{' and '.join(owner.label for owner in real)} install into {found.folder}"
        yield found.finding("two-owners", text, path=found.folder, owners=[owner.name for owner in real])
    for owner in found.stale:
        text = f"{owner.metadata} does not describe the files of {found.folder}"
        yield found.finding("stale-metadata", text, path=owner.metadata)
    for owner in found.owners:
        if owner.problem:
            yield found.finding("broken-record", owner.problem, package=owner.name)
        names = {name.path.lower(): name.path for name in _files.cudnn_files(found.folder)}
        paths = {path: os.path.join(site, path) for path in owner.record}
        if found.windows:  # which ignores case
            paths = {path: names.get(full.lower(), full) for path, full in paths.items()}
        rows = [(paths[path], *row) for path, row in owner.record.items()]
        large = [path for path, _, size in rows if deep and size > SMALL and _is_ours(found, path)]
        hashes = sha256_of(filter(os.path.isfile, large))
        different = [each for row in rows for each in _check_file(found, owner, *row, hashes)]
        for code in ("altered-file", "missing-file"):
            alike = [each for each in different if each.code == code]
            yield from alike if len(alike) <= FEW else [_many(found, owner, alike)]
    strays = {library.path for library in found.libraries.values() if found.is_stray(library)}
    for path in (path for path in found.unowned if path not in strays):
        yield found.finding("unowned-library", f"{path} does not belong to a package", path=path)


def check_dependents(found: LibrarySet) -> Iterator[Finding]:
    """Report the installed packages that need another cuDNN."""
    have = {owner.name: owner.version for owner in found.owners}
    package, version = next(iter(have.items()), (found.package, write(found.version)))
    for need in filter(lambda need: need.path, found.needs):
        if not is_met(found, need):
            text, consumer = f"{need}, not {package} {version}", need.consumer.rpartition("-")[0]
            wanted = need.package + need.versions
            shown: dict[str, Any] = {"path": need.path, "needs": wanted, "version": version}
            if need.optional:
                text, shown["severity"] = f"{text}, for a part of it", Severity.NOTE
            if not need.achievable:
                newer = pip.of(os.path.dirname(need.path), found.root).upgrade(consumer)
                shown["repair"] = Fix(f"install a newer {consumer}", () if divided(found) else newer)
            yield found.finding("consumer-mismatch", text, fix={"consumer": consumer}, **shown)


def is_met(found: LibrarySet, need: Need) -> bool:
    """Return whether a cuDNN meets a requirement of a package."""
    have = {owner.name: owner.version for owner in found.owners}
    if need.built:  # any package may provide it
        same = need.cuda == found.cuda or not (need.cuda and found.cuda)
        disk = write(found.version) if found.version else next(iter(have.values()), "")
        return same and meets(disk, need.versions)
    if need.package in have:
        return meets(have[need.package], need.versions)
    # No package owns this cuDNN: compare with the package that would contain it.
    return not found.owners and need.package == found.package


def with_needs(found: LibrarySet, needs: Sequence[Need]) -> LibrarySet:
    """Add the requirements for cuDNN, and those for other libraries of CUDA."""
    ours = tuple(need for need in needs if not need.package or need.package.startswith("nvidia-cudnn"))
    return replace(found, needs=ours, others=tuple(need for need in needs if need not in ours))


def needs(found: LibrarySet, sites: Sequence[str] = (), shared: bool = True) -> Iterator[Need]:
    """List the requirements of the packages that use this cuDNN; all of them if ``shared``."""
    own, linked = site_of(found.folder), found.sites  # from which links lead to it
    home = _root(own) if own else records.prefix_of(found.folder, found.root) or "/usr"
    for site in dict.fromkeys(filter(None, [own, *linked, *sites])):
        names = [name for name in _files.names_in(site) if re.match(r"[^~].*\.dist-info$", name)]
        mine = site in (own, *linked)
        other = any(map(OURS.match, names)) and (not mine or found.jit)
        if other or not (mine or shared or _root(site) == home):
            continue  # its packages use another cuDNN
        folders: dict[str, list[str]] = {}
        for name in names:
            folders.setdefault(canonical(name.partition("-")[0]), []).append(os.path.join(site, name))
        used = {name: records.in_use(metadata) for name, metadata in folders.items()}
        installed = Packages(used, _environment(site, found))
        for name, metadata in used.items():
            version = os.path.basename(metadata)[: -len(".dist-info")].partition("-")[2]
            for package, versions in dict.fromkeys(installed.wheels(name)):
                yield Need(package, versions, f"{name}-{version}", metadata)
            for package, versions, optional in _built_for(name, version, installed):
                yield Need(package, versions, f"{name}-{version}", metadata, True, optional)


def successor(folder: str, root: str, sites: Sequence[str] = ()) -> Fix:
    """Return the fix that installs cuDNN 9 in place of an older one, as far as other packages allow it."""
    found = LibrarySet(folder, {}, root=root, owners=records.owners(folder))
    if not found.owners:  # of an installer or of the system
        return Fix(
            "install nvidia-cudnn-cu12 or nvidia-cudnn-cu13 with pip for the Python of the program; the old "
            "cuDNN may stay for programs that need it"
        )
    package = found.owners[0].name
    required = [need for need in needs(found, sites) if not need.optional]
    users = [need if need.achievable else need._replace(package=package) for need in required]
    if all(consistent([need.versions, "<9"]) for need in users if need.package == package):
        users.append(Need(package, ">=9,<10", "a program for cuDNN 9"))
    return with_needs(found, users).repair


def known_bad(
    found: LibrarySet, cublas: str = "", archs: Sequence[int] = (), gpus: int = 0
) -> Iterator[Finding]:
    """Report known defects of a version, alone or combined with a libcublasLt and GPUs."""
    for row in rows("install"):
        lacks = ("cublas" in row and not cublas) or not found.version or gpus < row.get("gpus", 0)
        if lacks or ("arch" in row and not any(within(f"{a // 10}.{a % 10}", row["arch"]) for a in archs)):
            continue
        if within(write(found.version), row.get("cudnn", {})) and within(cublas, row.get("cublas", {})):
            shown = {name: row[name] for name in ("source", "advice")}
            yield finding("known-bad", row["message"], path=found.folder, cublas=cublas, **shown)


def known_defects(found: LibrarySet, archs: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return the known defects of a version in single operations, without those of other GPUs."""
    rows = defects(write(found.version)) if found.version else []
    near = [f"{arch // 10}.{arch % 10}" for arch in archs]
    return [row for row in rows if not near or any(within(each, row.get("arch", {})) for each in near)]


def _check_file(
    found: LibrarySet, owner: Distribution, path: str, expected: str, size: int, hashes: dict[str, str]
) -> Iterator[Finding]:
    if not _is_ours(found, path):
        return
    shown: dict[str, Any] = {"path": path, "package": owner.label}
    try:
        have = os.stat(path).st_size
    except OSError:
        name = _files.library_name(path)
        if not name or name.part not in found.missing:
            yield found.finding("missing-file", f"{path} of {owner.label} does not exist", **shown)
        return
    if size >= 0 and have != size:
        text = f"{path} has {have:,} bytes, but {owner.label} installed {size:,}"
        yield found.finding("altered-file", text, size=have, expected=size, **shown)
    elif expected.startswith("sha256=") and (path in hashes or have <= SMALL):
        got = hashes.get(path) or sha256(path)
        if got != expected:
            text = f"{path} differs from the file that {owner.label} installed"
            yield found.finding("altered-file", text, sha256=got, expected=expected, **shown)


def _is_ours(found: LibrarySet, path: str) -> bool:
    """Return whether a file is neither metadata nor one that Python writes."""
    return path.startswith(os.path.dirname(found.folder) + "/") and not path.endswith((".py", ".pyc"))


def _many(found: LibrarySet, owner: Distribution, different: list[Finding]) -> Finding:
    """Combine the findings for many files of a package, as after a deletion or an overwrite."""
    paths, code = [each.evidence["path"] for each in different], different[0].code
    words = {"missing-file": "of {} do not exist", "altered-file": "differ from those that {} installed"}
    text = f"{len(paths)} files {words[code].format(owner.label)}, such as {paths[-1]}"
    return found.finding(code, text, files=paths, package=owner.label)


def _environment(site: str, found: LibrarySet) -> dict[str, str]:
    """Return the values of the markers of requirements in a site-packages."""
    arm = any(library.elf.machine == 183 for library in found.sound)
    machines = ("AMD64", "ARM64") if found.windows else ("x86_64", "aarch64")
    python = re.search(r"/python(3\.\d+)t?/", f"{site}/")
    version = python[1] if python else f"3.{sys.version_info.minor}"
    return {
        **_PYTHON,
        **(_WINDOWS if found.windows else _LINUX),
        "platform_machine": machines[arm],
        "python_version": version,
        "python_full_version": f"{version}.0",
    }


def _built_for(name: str, version: str, installed: Packages) -> Iterator[tuple[str, str, bool]]:
    """Yield the wheel of cuDNN that a package was built with, the usable versions, and `Need.optional`."""
    for row in rows("consumer"):
        if row["package"] != name or not within(version, row):
            continue
        extra, always = installed.wheels(name, row.get("extra", "").split()), set(installed.wheels(name))
        ours = [each for each in extra if each[0].startswith("nvidia-cudnn") and each not in always]
        usual = f"nvidia-cudnn-cu{row['cuda']}" if "cuda" in row else ""
        for package, versions in ours or ([(usual, "")] if "versions" in row else []):
            # The last number is that of the wheel.
            usable = row.get("versions") or re.sub(r"(\d+\.\d+\.\d+)\.\d+", r"\1", versions)
            yield package, usable, row.get("optional", False)


def _root(site: str) -> str:
    """Return the root of the environment that a site-packages belongs to, or /usr for that of the system."""
    root = re.sub(r"/lib(64)?/python3[^/]*/(site|dist)-packages$", "", site)
    system = pip.shares(root)
    system = root.endswith(("/usr", "/usr/local", "/.local")) if system is None else system
    return "/usr" if system or not site else root


_PYTHON = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
_WINDOWS = {"os_name": "nt", "sys_platform": "win32", "platform_system": "Windows"}
_LINUX = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
