"""Check the cuDNN of a conda environment: the packages that need it, and a second one from pip."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import libraryset, packages, pip, records
from .finding import Finding, Fix, finding
from .libraryset import LibrarySet, write
from .read import files as _files
from .read.versions import meets

OURS = ("cudnn", "libcudnn")  # packages of cuDNN itself


class Package(NamedTuple):
    """An installed package that depends on cuDNN."""

    label: str  # its name and version
    cudnn: str  # the versions in the syntax of conda, such as ``>=9.10,<10.0a0``
    cuda: str  # the versions of CUDA
    path: str  # its metadata

    @property
    def wanted(self) -> str:
        """The cuDNN that it depends on."""
        return f"cudnn {self.cudnn}".rstrip() + (f" for CUDA {self.cuda}" if self.cuda else "")


def check(found: LibrarySet) -> Iterator[Finding]:
    """Report packages of conda that need another cuDNN, and a cuDNN of pip next to that of conda."""
    prefix = records.prefix_of(found.folder, found.root)
    if not prefix or found.windows or found.jit:
        return
    own, others = (_folders(prefix, patterns, found.root) for patterns in (_OF_CONDA, _OF_PIP))
    for package in _packages(prefix):
        if not own or (found.folder in own and not _meets(found, package)):
            have = f"cuDNN {write(found.version)} for CUDA {found.cuda or 'of an unknown version'}"
            text = f"{package.label} needs {package.wanted} of conda, not {have}{'' if own else ' of pip'}"
            name, again = package.label.partition(" ")[0], Fix(f"install {package.wanted} with conda")
            shown: dict[str, Any] = {"repair": again, "fix": {"consumer": name}, "path": package.path}
            yield finding("consumer-mismatch", text, **shown)
    if own and others:
        yield _second(found, prefix, own[0], others[0])


def _second(found: LibrarySet, prefix: str, own: str, other: str) -> Finding:
    """Describe a cuDNN of pip in an environment that has one of conda."""
    of_conda, of_pip = (libraryset.read(folder, found.root) for folder in (own, other))
    assert of_conda is not None
    assert of_pip is not None
    text = f"{prefix} has cuDNN {write(of_conda.version)} of conda in {own}, "
    text += f"and {write(of_pip.version)} of pip in {other}"
    needs = [need for need in packages.needs(of_pip) if need.package.startswith("nvidia-cudnn")]
    users = [need.consumer for need in needs if not (need.built and packages.is_met(of_conda, need))]
    labels = [package.label for package in _packages(prefix)]
    if users and labels:
        again = Fix(f"use separate environments: {labels[0]} needs that of conda, {users[0]} that of pip")
    elif users:
        path = pip.inside(prefix, found.root)
        again = Fix(f"remove that of conda, which no package needs: conda remove -p {path} cudnn libcudnn")
    else:
        names, site = [owner.name for owner in of_pip.owners], records.site_of(other)
        again = Fix("uninstall that of pip", pip.of(site, found.root).uninstall(names) if names else ())
    return finding("conda-and-pip", text, repair=again, path=other, other=own)


def _meets(found: LibrarySet, package: Package) -> bool:
    version = ".".join(map(str, found.version)) if found.version else ""
    good = not version or _within(version, package.cudnn)
    return good and (not found.cuda or _within(f"{found.cuda}.99", package.cuda))


def _within(version: str, spec: str) -> bool:
    """Return whether a version of three numbers meets versions in the syntax of conda."""
    alternatives = (",".join(map(_clause, each.split(","))) for each in spec.split("|"))
    return any(meets(version, each) for each in alternatives)


def _clause(text: str) -> str:
    """Convert a condition of conda to one of pip: ``9.10`` and ``=9.10`` are any 9.10."""
    match = re.fullmatch(r"([<>=!~]*)\s*(\d+(?:\.\d+)*)(\.?\*)?[a-z]*\d*", text.strip())
    if not match:
        return ""
    symbol, number, star = match.groups()
    number = ".".join(number.split(".")[:3])  # the fourth is that of the build
    exact = symbol in ("==", "!=") and not star
    return f"{symbol}{number}" if exact or symbol.strip("=") else f"=={number}.*"


def _packages(prefix: str) -> list[Package]:
    """List the packages that depend on cuDNN, by their files in ``conda-meta``."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(prefix), "conda-meta/*.json")):
        try:
            data = _files.contents(path)
            row = json.loads(data) if b"cudnn" in data else {}
            depends = [str(each).split() for each in row.get("depends", ())]
            label = f"{row.get('name')} {row.get('version')}"
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            continue
        specs = {words[0]: "".join(words[1:2]) for words in depends if words}
        for name in OURS:
            if name in specs and row.get("name") not in (*OURS, "libcudnn-dev"):
                found.append(Package(label, specs[name], specs.get("cuda-version", ""), path))
                break
    return sorted(found)


def _folders(prefix: str, patterns: tuple[str, ...], root: str) -> list[str]:
    """List the folders of an environment with a cuDNN 9."""
    below = [os.path.join(glob.escape(prefix), pattern) for pattern in patterns]
    found = [_files.real(folder, root) for pattern in below for folder in sorted(glob.glob(pattern))]
    return [each for each in dict.fromkeys(found) if any(n.major == 9 for n in _files.cudnn_files(each))]


_OF_CONDA = ("lib", "targets/*/lib")
_OF_PIP = ("lib/python3*/site-packages/nvidia/cudnn/lib",)
