"""Ways to break an installation of cuDNN, and the finding that each must give.

`CASES` break one cuDNN, `MIXES` add files of another one. tests/lib/test_doctor.py asserts each;
`tools/doctor_docs.py --matrix` runs all of them and writes the table of docs/doctor.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from cudnn_doctor import companions
from cudnn_doctor.read.libraries import SUBLIBRARIES, file_name, needs
from tests.doctor_sites import Answer, Site, Source, examine
from tests.elf_files import make_elf, packed

Damage = Callable[[Site], Any] | str  # a string is a command


@dataclass(frozen=True)
class Case:
    """One way to break an installation, and the codes of which one must be found."""

    name: str
    codes: frozenset[str]
    damage: Callable[..., Any] = field(compare=False)
    where: Callable[..., bool] = field(compare=False, default=lambda *_: True)

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def run(case: Case, folder: Path, source: Source, *other: Source) -> Answer:
    """Break a copy of a source in a folder, and run the doctor."""
    site = Site(folder, source)
    case.damage(site, *other)
    return examine(site.target, site.arguments, site.environ, site.prelude)


def named(case: Case, answer: Answer) -> bool:
    """Return whether the doctor named the cause with the right exit code."""
    return bool(case.codes & answer.codes()) and answer.exit_code == 1


def _last_byte_of_cnn(site: Site) -> None:
    site.run(LAST_BYTE.format("$cnn"))
    site.arguments.append("--deep")


def _only_a_link(site: Site) -> None:
    site.target = site.root.parent / "usr/lib"
    site.target.mkdir(parents=True)
    (site.target / "libcudnn.so.9").symlink_to(site.file(""))


def _unreadable(site: Site) -> None:
    data = site.file("").read_bytes()
    site.write(site.file(""), data).chmod(0)
    if os.geteuid() == 0:  # modes do not stop root
        site.prelude = "import hashlib, heapq, os, subprocess, tempfile; os.setuid(65534)"
    for folder in (site.lib, *site.lib.parents):
        ours = folder.name.startswith(("pytest", "popen-", "test", "cudnn-ct-matrix"))
        if ours or folder.is_relative_to(site.root.parent):
            folder.chmod(0o755)


def _path_with(site: Site, other: Source, *parts: str) -> None:
    folder = site.root.parent / "path"
    folder.mkdir()
    for part in parts or other.set.libraries:
        name = site.file(part).name
        os.link(other.libraries / name, folder / name)
    site.environ["LD_LIBRARY_PATH"] = str(folder)


def _old_libstdcxx(site: Site) -> None:
    data = Path(companions.find(site.source.set, "libstdc++.so.6")).read_bytes()
    old = site.write(site.root.parent / "old/libstdc++.so.6", data.replace(b"CXXABI_1.3\0", b"CXXABI_0.3\0"))
    site.environ["LD_LIBRARY_PATH"] = str(old.parent)


def _first_on_path(name: str, code: str, data: bytes) -> Case:
    """Put a broken library in front of a sound one, as a copy of another environment does."""

    def damage(site: Site) -> None:
        file = name.format(site.source.set.cuda)
        folder = site.write(site.root.parent / "first" / file, data).parent
        site.environ["LD_LIBRARY_PATH"] = str(folder)

    kind = {b"": "an empty", LFS.encode(): "a Git LFS pointer for"}.get(data, "a truncated")
    return _case(f"LD_LIBRARY_PATH with {kind} {name.partition('.')[0]}", code, damage)


def _holds(part: str, data: bytes | str) -> Damage:
    return lambda site: site.write(site.file(part), data)


def _cut(part: str, size: int) -> str:
    return f"head -c {size} ${part} > part; mv part ${part}"


def _byte(at: int, value: int) -> str:
    return f"cp $shim part; printf '\\{value}' | dd of=part bs=1 seek={at} conv=notrunc; mv part $shim"


def _adds(name: str) -> Damage:
    """Add a library, which has the name of its part."""
    return lambda site: site.write(site.lib / name, make_elf(name.partition(".so")[0] + ".so.9"))


def _missing(part: str) -> Case:
    name = file_name(part)
    case = _case(f"without {name.removesuffix('.so.9')}", "missing-library", f"rm {name}")
    return replace(case, where=lambda source: part in source.set.libraries)


def _case(name: str, code: str, damage: Damage) -> Case:
    act = damage if callable(damage) else lambda site: site.run(damage)
    return Case(name, frozenset(code.split()), act)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
LAST_BYTE = "head -c -1 {0} > part; echo >> part; mv part {0}"
TORCH = (
    "d=$metadata/../torch-2.dist-info; mkdir $d; "
    r"printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2\nRequires-Dist: %s==9\n' $package > $d/METADATA"
)
OTHER_GRAPH = make_elf("libcudnn_graph.so.9", constants={"cudnn_graph_version": packed("9.2.0")})


CASES = (
    *map(_missing, ("", *SUBLIBRARIES)),
    _case("only libcudnn.so.9 was copied", "missing-library", "rm libcudnn_*"),
    _case("libcudnn cut to a page", "damaged-library", _cut("shim", 4096)),
    _case("graph cut in half", "damaged-library", _cut("graph", 2_000_000)),
    _case("precompiled cut", "damaged-library", _cut("engines_precompiled", 50_000_000)),
    _case("ops is empty", "damaged-library", _holds("ops", b"")),
    _case("libcudnn is a web page", "damaged-library", _holds("", "<html>404 Not Found</html>")),
    _case("adv is a Git LFS pointer", "damaged-library", _holds("adv", LFS)),
    _case("libcudnn is a linker script", "damaged-library", _holds("", "INPUT(libcudnn.so.9.0)")),
    _case("cnn is zeros", "damaged-library", _holds("cnn", bytes(100_000))),
    _case("graph has its header alone", "damaged-library", _cut("graph", 64)),
    _case("libcudnn is a pipe", "damaged-library", "rm $shim; mkfifo $shim"),
    _case("ops is a folder", "damaged-library", "rm $ops; mkdir $ops"),
    _case("libcudnn is of another processor", "foreign-machine", _byte(18, 3)),
    _case("libcudnn is 32-bit", "foreign-machine", _byte(4, 1)),
    _case("graph says another version", "mixed-versions", _holds("graph", OTHER_GRAPH)),
    _case("cnn has the name of ops", "wrong-library", "ln -f $cnn $ops"),
    _case("heuristic is a link to nothing", "broken-link", "ln -sf gone.so $heuristic"),
    _case("adv is a link to itself", "broken-link", "rm $adv; ln -s $adv $adv"),
    _case("a link in another folder", "link-elsewhere", _only_a_link),
    _case("heuristic is a stub", "altered-file", _adds("libcudnn_heuristic.so.9")),
    _case("readable for its owner alone", "private-file", "cp $shim part; chmod 600 part; mv part $shim"),
    _case("any user can write a file", "world-writable", "cp $cnn part; chmod 666 part; mv part $cnn"),
    _case("not readable", "unreadable-library", _unreadable),
    _case(
        "a header of another version", "header-mismatch", "sed -i 's/LEVEL .*/LEVEL 9/' ../include/*version.h"
    ),
    _case("libcudnn with bytes behind its end", "altered-file", "cp $shim part; echo >> part; mv part $shim"),
    _case("libcudnn with another byte", "altered-file", LAST_BYTE.format("$shim")),
    _case("cnn with another byte, --deep", "altered-file", _last_byte_of_cnn),
    _case("RECORD is garbage", "broken-record", "echo garbage > part; mv part $metadata/RECORD"),
    _case("a header is gone", "missing-file", "rm ../include/cudnn_ops.h"),
    _case("a library that no package brought", "unowned-library", _adds("libcudnn_extra.so.9")),
    _case("two files of cnn", "two-files", _adds("libcudnn_cnn.so.9.99.0")),
    _case("two packages own the folder", "two-owners", "cp -r $metadata ${metadata%cu*}cu11-9.dist-info"),
    _case("torch wants another version", "consumer-mismatch", TORCH),
    _case(
        "LD_PRELOAD of another graph",
        "preloaded",
        lambda s: s.environ.update(LD_PRELOAD=f"{s.source.libraries}/libcudnn_graph.so.9"),
    ),
    _case(
        "LD_LIBRARY_PATH with another heuristic", "shadowed", lambda s: _path_with(s, s.source, "heuristic")
    ),
    _case("LD_LIBRARY_PATH with an old libstdc++", "old-system-library", _old_libstdcxx),
    _first_on_path("libz.so.1", "damaged-library", b""),
    _first_on_path("libz.so.1", "damaged-library", make_elf("libz.so.1")[:300]),
    _first_on_path("libz.so.1", "damaged-library", LFS.encode()),
    _first_on_path("libstdc++.so.6", "damaged-library", b""),
    _first_on_path("libgcc_s.so.1", "damaged-library", make_elf("libgcc_s.so.1")[:300]),
    _first_on_path("libcublasLt.so.{0}", "damaged-library", make_elf("libcublasLt.so")[:300]),
    _first_on_path("libcublasLt.so.{0}", "damaged-library", b""),
    _case("no libcublasLt", "missing-cublaslt", "rm -r ../../cublas"),
    replace(
        _case("no libnvrtc", "missing-nvrtc", "rm -r ../../cuda_nvrtc"),
        where=lambda source: needs("libnvrtc", source.set.kind, source.set.version),
    ),
)


# --- with files of another cuDNN ---------------------------------------------------------------------

# A library of another version may be for another CUDA too.
_OF_VERSION = frozenset({"mixed-versions", "unresolved-symbols", "foreign-shim", "mixed-cuda"})


def _other_version(source: Source, other: Source) -> bool:
    return source.set.version != other.set.version


def _other_cuda(source: Source, other: Source) -> bool:
    return source.set.version == other.set.version and source.set.cuda != other.set.cuda


def _both(part: str, condition: Callable[[Source, Source], bool]) -> Callable[[Source, Source], bool]:
    return lambda source, other: (
        condition(source, other)
        and part in source.set.libraries
        and part in other.set.libraries
        and not _identical(source, other, part)
    )


def _identical(source: Source, other: Source, part: str) -> bool:
    """Return whether two files are equal: libcudnn.so.9 of a version is the same file for each CUDA."""
    one, two = (Path(each.set.libraries[part].real) for each in (source, other))
    return one.stat().st_size == two.stat().st_size < 1 << 20 and one.read_bytes() == two.read_bytes()


def _newer(source: Source, other: Source) -> bool:
    return "engines_tensor_ir" in other.set.libraries and (source.set.version or (9,)) < (9, 21)


def _takes(part: str, record: bool) -> Callable[..., None]:
    def damage(site: Site, other: Source) -> None:
        site.take(part, other)
        if not record:
            shutil.rmtree(site.root / site.source.metadata.name)

    return damage


def _mixes() -> Iterator[Case]:
    kinds = (
        ("of another version", _OF_VERSION, _other_version),
        ("for another CUDA", frozenset({"mixed-cuda"}), _other_cuda),
    )
    for part, (kind, codes, condition) in product(("", *SUBLIBRARIES), kinds):
        name, where = f"libcudnn{'_' if part else ''}{part} {kind}", _both(part, condition)
        yield Case(name, codes | {"altered-file"}, _takes(part, True), where)
        yield Case(f"{name}, no RECORD", codes, _takes(part, False), where)
    yield Case(
        "a second wheel laid over it",
        frozenset({"two-owners"}),
        lambda site, other: site.lay(other),
        lambda source, other: source.set.cuda != other.set.cuda,
    )
    yield Case(
        "a leftover engines_tensor_ir",
        frozenset({"stray-library"}),
        lambda site, other: site.take("engines_tensor_ir", other),
        _newer,
    )
    yield Case("LD_LIBRARY_PATH with another version", frozenset({"shadowed"}), _path_with, _other_version)
    yield Case(
        "LD_LIBRARY_PATH with a leftover engines_tensor_ir",
        frozenset({"shadowed"}),
        lambda site, other: _path_with(site, other, "engines_tensor_ir"),
        _newer,
    )


MIXES = tuple(_mixes())


def pairs(sources: list[Source]) -> Iterator[tuple[Source, Source]]:
    """Pair each source with the versions before and after it, and with builds for another CUDA."""
    order = sorted(sources, key=lambda source: (source.set.cuda, source.set.version or (0, 0, 0)))
    for source in sources:
        alike = [other for other in order if other.set.cuda == source.set.cuda]
        place = alike.index(source)
        beside = [*alike[max(place - 1, 0) : place], *alike[place + 1 : place + 2]]
        others = [other for other in order if other.set.cuda != source.set.cuda]
        same_version = [other for other in others if _other_cuda(source, other)]
        for other in dict.fromkeys([*beside, *others[:1], *same_version]):
            yield source, other
