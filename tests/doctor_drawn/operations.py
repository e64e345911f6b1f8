"""Breakages, each of which states what is wrong with the site afterwards, and harmless changes.

An operation returns False, and changes nothing, if the site does not have what it breaks.
"""

from __future__ import annotations

import filecmp
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from tests.doctor_drawn import consumers, driver, files, shell, wheels
from tests.doctor_drawn.sites import PYTHON, SYSTEM_FOLDERS, Site, Truth, pinned, relabel
from tests.elf_files import make_elf

Operation = Callable[[random.Random, Site], bool]

MISSING = {"missing-library", "no-cudnn"}
DAMAGED = {"damaged-library"}
MIXED = {"mixed-versions", "mixed-cuda", "unresolved-symbols", "altered-file", "foreign-shim", "jit-only",
         "check-failed", "mixed-at-run-time", "finalize-failed"}  # fmt: skip
PAGE = b"<!DOCTYPE html><html><head><title>404 Not Found</title></head></html>\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 137432\n"


def blame(
    site: Site, operation: str, key: str, codes: set[str], *names: str, by_hand: bool | None = None
) -> bool:
    """Record a truth about the thing ``key``, in place of an older one about it."""
    hand = site.owner != "pip" if by_hand is None else by_hand
    site.truths[key] = Truth(operation, frozenset(codes), names or (key,), hand)
    return True


def whole(site: Site, most: int | None = None) -> list[str]:
    """The names of the libraries that no operation has changed, with at most ``most`` bytes."""
    if "links" in site.truths:  # the names are not those of libraries
        return []
    names = [name for name in site.libraries() if name not in site.truths and site.library(name).is_file()]
    return [name for name in names if most is None or site.library(name).stat().st_size < most]


def any_library(rng: random.Random, site: Site) -> str | None:
    """The name of an unchanged library."""
    names = whole(site)
    return rng.choice(names) if names else None


def small_library(rng: random.Random, site: Site) -> str | None:
    """The name of an unchanged library that can be copied in no time."""
    names = whole(site, 12 << 20)
    return rng.choice(names) if names else None


def others(site: Site) -> list[wheels.Wheel]:
    """The wheels of other versions or other versions of CUDA."""
    return [each for each in wheels.cudnns() if each != site.wheel]


def delete(rng: random.Random, site: Site) -> bool:
    """Delete a library."""
    name = any_library(rng, site)
    if name is None:
        return False
    delete_library(site, name)
    return True


def delete_library(site: Site, name: str) -> Truth:
    """Delete the file of a library, with the links that lead to it, and return the truth about it."""
    for path in {site.library(name), *site.folder.glob(name.split(".so")[0] + ".so*")}:
        files.remove(path)
    blame(site, "delete", name, MISSING, name, "contains no library")
    return site.truths[name]


def delete_many(rng: random.Random, site: Site) -> bool:
    """Copy only some of the libraries, as images that are made by hand do."""
    if site.truths:
        return False
    kept = set(rng.sample(site.libraries(), rng.randint(1, 3)))
    gone = [name for name in site.libraries() if name not in kept]
    for name in gone:
        for path in {site.library(name), *site.folder.glob(name.split(".so")[0] + ".so*")}:
            files.remove(path)
    return blame(site, "delete_many", "libraries", MISSING, *gone, "contains no library")


def truncate(rng: random.Random, site: Site) -> bool:
    """Cut a library, as an interrupted copy does."""
    name = any_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    files.cut(path, max(1, int(path.stat().st_size * rng.choice([0, 0.0001, 0.1, 0.5, 0.9, 0.9999]))))
    return blame(site, "truncate", name, DAMAGED)


def empty(rng: random.Random, site: Site) -> bool:
    """Replace a library by an empty file."""
    name = any_library(rng, site)
    if name is None:
        return False
    files.write(site.library(name), b"")
    return blame(site, "empty", name, DAMAGED)


def junk(rng: random.Random, site: Site) -> bool:
    """Replace a library by a web page, a Git LFS pointer, or zeros."""
    name = any_library(rng, site)
    if name is None:
        return False
    files.write(site.library(name), rng.choice([PAGE, POINTER, bytes(70000)]))
    return blame(site, "junk", name, DAMAGED)


def rename(rng: random.Random, site: Site) -> bool:
    """Leave a library, with which others are linked, only its name without a version."""
    names = [name for name in whole(site) if name in ("libcudnn_ops.so.9", "libcudnn_graph.so.9")]
    if not names or site.layout in ("annex", "farm"):
        return False
    name = rng.choice(names)
    path, short = site.library(name), site.folder / name[:-2]
    if path.is_symlink() or short.exists() or list(site.folder.glob(f"{name}.*")):
        return False
    path.rename(short)
    return blame(site, "rename", name, {"lost-link", "missing-library"})


def dangle(rng: random.Random, site: Site) -> bool:
    """Replace a library by a link to nothing or to itself."""
    name = any_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    files.remove(path)
    path.symlink_to(rng.choice([path.name, "/nowhere/" + path.name, "../gone/" + path.name]))
    return blame(site, "dangle", name, {"broken-link"}, name, path.name)


def swap(rng: random.Random, site: Site) -> bool:
    """Put in the library of another version or another CUDA."""
    choices = [(each, name) for each in others(site) for name in whole(site) if name in each.names()]
    if not choices:
        return False
    other, name = rng.choice(choices)
    if filecmp.cmp(other.source(name), site.library(name), shallow=False):
        return False  # such as libcudnn.so.9 of 9.20 for CUDA 12 and 13
    files.place(other.source(name), site.library(name))
    return blame(site, "swap", name, MIXED)


def overlay(rng: random.Random, site: Site) -> bool:
    """Copy all libraries of another version over these, without metadata."""
    if site.owner == "dpkg" or site.layout in ("annex", "archive", "conda", "farm") or site.truths:
        return False
    choices = others(site)
    if not choices:
        return False
    other = rng.choice(choices)
    for path in other.libraries():
        files.place(other.source(Path(path).name), site.folder / Path(path).name)
    return blame(site, "overlay", "libraries", MIXED | {"stale-metadata", "stray-library", "unowned-library",
                 "header-mismatch"}, "libcudnn", site.wheel.name)  # fmt: skip


def machine(rng: random.Random, site: Site) -> bool:
    """Put in a library for another processor."""
    name = any_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    source = path.resolve()
    copy = path.with_name("copy.tmp")
    files.skeleton(source, copy)
    with copy.open("r+b") as stream:
        stream.seek(18)
        stream.write(struct.pack("<H", rng.choice([183, 21, 243])))  # aarch64, PowerPC, RISC-V
    os.replace(copy, path)
    return blame(site, "machine", name, {"foreign-machine"})


def private(rng: random.Random, site: Site) -> bool:
    """Let only the owner read a library or enter the folder."""
    if rng.random() < 0.3:
        if site.layout in ("system", "conda"):
            return False
        site.folder.chmod(0o700)
        names = (str(site.folder), str(site.folder.resolve()))  # the folder may be a link
        return blame(site, "private", "folder", {"private-file"}, *names, by_hand=False)
    name = small_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    files.own(path)
    path.chmod(rng.choice([0o600, 0o640, 0o700]))
    return blame(site, "private", name, {"private-file"}, name, path.name, by_hand=False)


def writable(rng: random.Random, site: Site) -> bool:
    """Let any user write a library."""
    name = small_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    files.own(path)
    path.chmod(rng.choice([0o666, 0o777, 0o646]))
    return blame(site, "writable", name, {"world-writable"}, name, path.name, by_hand=False)


def header(rng: random.Random, site: Site) -> bool:
    """Put the header of another version next to the libraries."""
    headers = list(site.folder.parent.glob("include/cudnn_version*.h"))
    if not headers or site.owner != "pip" or "header" in site.truths:
        return False
    for path in headers:
        text = path.read_text().replace(f"#define CUDNN_MINOR {site.wheel.key[1]}", "#define CUDNN_MINOR 5")
        files.write(path, text.encode())
    return blame(site, "header", "header", {"header-mismatch", "altered-file"}, "cudnn_version")


def header_gone(rng: random.Random, site: Site) -> bool:
    """Delete a header that pip installed."""
    headers = sorted(site.folder.parent.glob("include/cudnn_[agoc]*.h"))
    if not headers or site.owner != "pip" or site.layout == "annex":
        return False
    path = rng.choice(headers)
    files.remove(path)
    return blame(site, "header_gone", path.name, {"missing-file"})


def stray(rng: random.Random, site: Site) -> bool:
    """Leave a library that only a newer version has."""
    known = set(site.libraries())
    extra = [(each, Path(path).name) for each in others(site) for path in each.libraries()
             if Path(path).name not in known]  # fmt: skip
    if not extra:
        return False
    other, name = rng.choice(extra)
    files.place(other.source(name), site.folder / name)
    return blame(site, "stray", name, {"stray-library", "unowned-library"}, by_hand=False)


def two_wheels(rng: random.Random, site: Site) -> bool:
    """Install the wheel for another CUDA over this one, in either order."""
    choices = [each for each in others(site) if each.name != site.wheel.name]
    if not choices or site.packages is None or site.owner != "pip" or site.layout == "annex" or site.truths:
        return False
    other = rng.choice(choices)
    other.install(site.packages)
    if rng.random() < 0.5:
        site.wheel.lay(site.packages)
    return blame(site, "two_wheels", "libraries", {"two-owners"}, other.name)


def uninstalled_other(rng: random.Random, site: Site) -> bool:
    """Install the wheel for another CUDA and uninstall it again: files of this one are gone with it."""
    choices = [each for each in others(site) if each.name != site.wheel.name]
    if not choices or site.packages is None or site.owner != "pip" or site.layout == "annex" or site.truths:
        return False
    other = rng.choice(choices)
    for path, _ in other.sources:
        files.remove(site.packages / path)
    return blame(site, "uninstalled_other", "libraries", MISSING, "libcudnn", site.wheel.name)


def stale(rng: random.Random, site: Site) -> bool:
    """Leave the metadata of another version of the same wheel."""
    if site.packages is None or site.owner != "pip" or "metadata" in site.truths:
        return False
    if not (site.packages / site.wheel.info).is_dir():
        return False
    major, minor, *rest = site.wheel.version.split(".")
    version = ".".join([major, str(int(minor) + rng.choice([-1, 1])), *rest])
    info = site.packages / site.wheel.info
    copy = site.packages / site.wheel.info.replace(site.wheel.version, version)
    for path in info.iterdir():
        if path.is_file():
            text = path.read_text().replace(site.wheel.version, version)
            files.write(copy / path.name, text.encode())
    return blame(site, "stale", "metadata", {"stale-metadata"}, version, copy.name)


def record_junk(rng: random.Random, site: Site) -> bool:
    """Make pip's RECORD unreadable, or delete it."""
    if site.packages is None or site.owner != "pip" or "metadata" in site.truths:
        return False
    if not (site.packages / site.wheel.info).is_dir():
        return False
    path = site.packages / site.wheel.info / "RECORD"
    kind = rng.choice(["gone", "garbage", "empty"])
    files.remove(path)
    if kind != "gone":
        files.write(path, b"\x00\xff\xfe garbage" * 9 if kind == "garbage" else b"")
    return blame(site, "record_junk", "metadata", {"broken-record", "stale-metadata"}, "RECORD")


def flip(rng: random.Random, site: Site) -> bool:
    """Change one byte of the code of libcudnn."""
    if site.owner != "pip" or site.layout == "annex" or "libcudnn.so.9" not in whole(site):
        return False
    path = site.library("libcudnn.so.9")
    data = bytearray(path.read_bytes())
    offset = data.find(b"\x00" * 64, len(data) // 2)
    offset = offset + 32 if offset > 0 else len(data) // 2
    data[offset] ^= 1
    files.write(path, bytes(data))
    return blame(
        site, "flip", "libcudnn.so.9", {"altered-file", "damaged-library", "probe-crashed", "load-failed"}
    )


def zero_tables(rng: random.Random, site: Site) -> bool:
    """Overwrite the dynamic symbol names of a library by zeros; the size stays."""
    name = small_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    data = path.read_bytes()
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, number = struct.unpack_from("<HH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, offset + size * row) for row in range(number)]
    start, length = next((row[4], row[5]) for row in rows if row[1] == 3 and row[2] & 2)  # allocated STRTAB
    files.write(path, data[:start] + bytes(length) + data[start + length :])
    return blame(site, "zero_tables", name, DAMAGED | MIXED | {"wrong-library"})


def zero_half(rng: random.Random, site: Site) -> bool:
    """Overwrite the second half of a library, with its dynamic section, by zeros; the size stays."""
    name = small_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    data = path.read_bytes()
    offset = struct.unpack_from("<Q", data, 32)[0]
    number = struct.unpack_from("<H", data, 56)[0]
    rows = [struct.unpack_from("<IIQQQQ", data, offset + 56 * row) for row in range(number)]
    start = next(row[2] for row in rows if row[0] == 2)  # PT_DYNAMIC
    half = len(data) // 2
    if start < half:
        return False
    files.write(path, data[:half] + bytes(len(data) - half))
    return blame(site, "zero_half", name, DAMAGED)


def convert_lines(rng: random.Random, site: Site) -> bool:
    """Convert the line ends of a library, as a transfer in text mode does."""
    name = small_library(rng, site)
    if name is None:
        return False
    path = site.library(name)
    files.write(path, path.read_bytes().replace(b"\n", b"\r\n"))
    return blame(site, "convert_lines", name, DAMAGED)


def cache_gone(rng: random.Random, site: Site) -> bool:
    """Replace all files of the wheel by links to a cache that was deleted, as uv links them."""
    if site.packages is None or site.owner != "pip" or site.layout == "annex" or site.truths:
        return False
    if not (site.packages / site.wheel.info).is_dir():
        return False
    info = [f"{site.wheel.info}/{name}" for name in ("METADATA", "WHEEL")]
    for name in [*(path for path, _ in site.wheel.sources if path.startswith("nvidia/cudnn/")), *info]:
        files.remove(site.packages / name)
        (site.packages / name).symlink_to(f"/nowhere/archive-v0/{name}")
    return blame(site, "cache_gone", "libraries", {"broken-link"}, "libcudnn")


def moved_aside(rng: random.Random, site: Site) -> bool:
    """Rename the folder of all wheels of NVIDIA."""
    if site.packages is None or site.owner != "pip" or site.layout == "annex" or site.truths:
        return False
    if not (site.packages / site.wheel.info).is_dir():
        return False
    (site.packages / "nvidia").rename(site.packages / "nvidia.bak")
    return blame(site, "moved_aside", "libraries", MISSING, "contains no library")


def cublas_gone(rng: random.Random, site: Site) -> bool:
    """Remove libcublasLt: its file, or the whole package."""
    path = site.companion("libcublasLt")
    if path is None or "cublas" in site.truths or (site.layout in ("farm",)):
        return False
    names = [name for name in wheels.COMPANIONS[site.wheel.cuda] if "cublas" in name]
    if site.packages and rng.random() < 0.5:
        for info in site.packages.glob(names[0].replace("-", "_") + "-*.dist-info"):
            files.remove(info)
    files.remove(path.resolve())
    files.remove(path)
    return blame(
        site, "cublas_gone", "cublas", {"missing-cublaslt"}, "libcublasLt", by_hand=site.packages is None
    )


def cublas_cut(rng: random.Random, site: Site) -> bool:
    """Cut libcublasLt, or make it empty."""
    path = site.companion("libcublasLt")
    if path is None or "cublas" in site.truths:
        return False
    path = path.resolve()
    files.cut(path, rng.choice([1, 5000, path.stat().st_size // 2]))
    return blame(site, "cublas_cut", "cublas", {"damaged-library"}, "libcublasLt")


def nvrtc_gone(rng: random.Random, site: Site) -> bool:
    """Delete libnvrtc, which engines of cuDNN up to 9.20 need."""
    path = site.companion("libnvrtc")
    if path is None or site.wheel.key >= (9, 21) or site.layout == "farm" or "nvrtc" in site.truths:
        return False
    for each in path.parent.glob("libnvrtc.so*"):
        files.remove(each)
    return blame(site, "nvrtc_gone", "nvrtc", {"missing-nvrtc"}, "libnvrtc", by_hand=site.packages is None)


def toolkit_gone(rng: random.Random, site: Site) -> bool:
    """Delete libnvrtc with its package, and the metadata of cuda-toolkit, which alone has its version."""
    if site.packages is None or site.owner != "pip" or site.wheel.key >= (9, 21) or "nvrtc" in site.truths:
        return False
    if not any("cuda-toolkit" in line for each in site.consumers for line in each.requires):
        return False
    if shell.version_of(site.packages, "nvidia-cuda-nvrtc") is None or site.wheel.cuda != "13":
        return False
    shell.uninstall(site.packages, "nvidia-cuda-nvrtc")
    shell.uninstall(site.packages, "cuda-toolkit")
    by_hand = site.layout == "target"  # which has no pip
    return blame(site, "toolkit_gone", "nvrtc", {"missing-nvrtc"}, "libnvrtc", by_hand=by_hand)


def relink(rng: random.Random, site: Site) -> bool:
    """Link the name that programs open to a file of another version, which is put next to the right one."""
    links = {path.name for path in site.folder.glob("libcudnn*.so.9") if path.is_symlink()}
    choices = [
        (each, name)
        for each in others(site)
        for name in whole(site)
        if name in links & each.names() and each.version != site.wheel.version
    ]
    if not choices or site.layout in ("annex", "farm"):
        return False
    other, name = rng.choice(choices)
    file = f"{name[:-2]}.{'.'.join(other.version.split('.')[:3])}"
    files.place(other.source(name), site.folder / file)
    files.remove(site.folder / name)
    (site.folder / name).symlink_to(file)
    return blame(site, "relink", name, {"wrong-link"}, by_hand=False)


def unversioned(rng: random.Random, site: Site) -> bool:
    """Leave each library under its name without a version alone, as a copy by ``cp -L *.so`` does."""
    if site.layout != "archive" or site.truths:
        return False
    for name in site.libraries():
        file, stem = site.library(name), name.split(".so")[0]
        data = file.rename(site.folder / f"{stem}.moved")
        for path in site.folder.glob(stem + ".so*"):
            files.remove(path)
        data.rename(site.folder / f"{stem}.so")
    return blame(site, "unversioned", "links", {"lost-link"}, "libcudnn.so.9", by_hand=False)


def text_links(rng: random.Random, site: Site) -> bool:
    """Write each link as a small text file, as unpackers on file systems without links do."""
    links = [path for path in site.folder.glob("libcudnn*") if path.is_symlink()]
    if site.layout not in ("archive", "system") or site.truths or not links:
        return False
    for path in links:
        files.write(path, os.readlink(path).encode() + rng.choice([b"", b"\n"]))
    return blame(site, "text_links", "links", {"lost-link"}, "libcudnn.so.9", by_hand=False)


def unpacked_over(rng: random.Random, site: Site) -> bool:
    """Unpack the archive of another version over this one."""
    choices = [
        each
        for each in others(site)
        if each.cuda == site.wheel.cuda and each.version[:4] != site.wheel.version[:4]
    ]
    if site.layout != "archive" or site.truths or not choices:
        return False
    other = rng.choice(choices)
    patch = ".".join(other.version.split(".")[:3])
    for path, source in other.sources:
        name = Path(path).name
        stem = name.split(".so.")[0]
        if path.startswith("nvidia/cudnn/include/"):
            files.place(source, site.folder.parent / "include" / name)
        elif ".so." in name:
            for link, target in ((name, f"{stem}.so.{patch}"), (f"{stem}.so", name)):
                files.remove(site.folder / link)
                (site.folder / link).symlink_to(target)
            other.lay_file(source, site.folder / f"{stem}.so.{patch}")
    site.wheel = other
    return blame(
        site, "unpacked_over", "libraries", {"two-files", "stray-library"}, "libcudnn", by_hand=False
    )


OLD = ("", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train", "_adv_infer", "_adv_train")
OLD_TORCH = consumers.Consumer(
    "torch", "2.1.0", "torch", "12", "==8.9.2.26", ("nvidia-cudnn-cu12==8.9.2.26" + consumers.LINUX,)
)


def old_wheel(rng: random.Random, site: Site) -> bool:
    """Have cuDNN 8 from pip in place of this one, sometimes with a package that requires it."""
    if site.owner != "pip" or site.layout == "annex" or site.wheel.cuda != "12" or site.truths:
        return False
    if site.packages is None:
        return False
    if needed := rng.random() < 0.4 and all(each.name != "torch" for each in site.consumers):
        OLD_TORCH.install(site.packages)
        site.consumers.append(OLD_TORCH)
    shell.uninstall(site.packages, site.wheel.name)
    version = {"cudnn_ops_infer_version": 0x080907}
    paths = [f"nvidia/cudnn/lib/libcudnn{part}.so.8" for part in OLD]
    for path, part in zip(paths, OLD, strict=True):
        constants = version if part == "_ops_infer" else {}
        files.write(site.packages / path, make_elf(Path(path).name, constants=constants))
    metadata = f"Metadata-Version: 2.1\nName: {site.wheel.name}\nVersion: 8.9.7.29\n"
    wheels.install_metadata(site.packages, site.wheel.name, "8.9.7.29", metadata, paths)
    name = "torch-2.1.0" if needed else "8.9.7"
    return blame(site, "old_wheel", "libraries", {"old-cudnn"}, name, by_hand=needed)


def interrupted(rng: random.Random, site: Site) -> bool:
    """Leave the folder that pip renames before it deletes it."""
    name = small_library(rng, site)
    if site.packages is None or site.owner != "pip" or name is None:
        return False
    top = site.packages / rng.choice(["~vidia", "nvidia/~udnn", "~-idia", "~%=dia"])
    files.place(site.library(name), top / rng.choice(["lib", "cudnn/lib"]) / name)
    return blame(site, "interrupted", "leftover", {"interrupted-pip"}, str(top), name, by_hand=False)


def shared_base(rng: random.Random, site: Site) -> bool:
    """Break the cuDNN of an environment on which another one is based, and examine that one."""
    name = any_library(rng, site)
    if site.layout != "venv" or site.subject is None or name is None:
        return False
    delete_library(site, name)
    prefix = site.root / "based"
    (prefix / "lib" / PYTHON / "site-packages").mkdir(parents=True)
    home = (site.packages or site.root).parents[2] / "bin"
    files.write(prefix / "pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = true\n".encode())
    version = PYTHON.removeprefix("python")
    with (prefix / "pyvenv.cfg").open("a") as stream:
        stream.write(f"version = {version}.1\n")
    site.subject = rng.choice([prefix, prefix / "lib" / PYTHON / "site-packages"])
    return True


# Statuses of cuInit, and the codes of their causes by the documentation of CUresult.
STATUSES = {
    0: "driver-too-old", 34: "driver-stub", 46: "gpu-unavailable", 100: "no-gpu", 304: "gpu-unavailable",
    802: "gpu-unavailable", 803: "driver-broken", 805: "gpu-unavailable", 999: "driver-broken",
}  # fmt: skip


def without_driver(site: Site) -> bool:
    """Whether a driver can be drawn: the doctor asks for one, and this machine has none."""
    if site.image or "--static" in site.flags or {"driver", "CUDNN_CT_LIBRARY"} & site.truths.keys():
        return False
    return driver.drawable() and not driver.installed()


def driver_missing(rng: random.Random, site: Site) -> bool:
    """Require a driver, where none is."""
    if not without_driver(site):
        return False
    site.flags.append("--require-driver")
    return blame(site, "driver_missing", "driver", {"no-driver"}, "libcuda.so.1", by_hand=True)


def driver_fails(rng: random.Random, site: Site) -> bool:
    """Install a driver that is a stub, that is too old, or that returns an error."""
    if not without_driver(site):
        return False
    status = rng.choice([*STATUSES, 46, 805])
    folder = site.root / "driver"
    driver.write(folder / "libcuda.so.1", status, 11040 if status == 0 else 13000)
    old = site.environment.get("LD_LIBRARY_PATH")
    site.environment["LD_LIBRARY_PATH"] = str(folder) + (f":{old}" if old else "")
    site.flags += ["--require-gpu"] * (status == 100)
    names = {0: ["CUDA 11.4"], 34: [f"{folder}"], 100: ["GPU"]}.get(status, [f"cuInit returned {status}"])
    return blame(site, "driver_fails", "driver", {STATUSES[status]}, *names, by_hand=True)


def driver_of_wsl(rng: random.Random, site: Site) -> bool:
    """Run in a WSL whose linker does not search the folder of the driver."""
    if not without_driver(site) or not driver.mountable(wheels.scratch() / "wsl"):
        return False
    site.wrap = driver.like_wsl(site.root / "wsl")
    driver.write(site.root / "wsl/lib/wsl/lib/libcuda.so.1", version=13000)
    site.flags.append("--require-driver")
    return blame(site, "driver_of_wsl", "driver", {"no-driver"}, "/usr/lib/wsl/lib", by_hand=False)


def other_folder(site: Site, rng: random.Random) -> tuple[Path, wheels.Wheel] | None:
    """A folder with the libraries of another version, outside of the installation."""
    choices = others(site)
    if not choices:
        return None
    other = rng.choice(choices)
    folder = site.root / "other" / other.version / "lib"
    for path in other.libraries():
        files.place(other.source(Path(path).name), folder / Path(path).name)
    return folder, other


def path_shadow(rng: random.Random, site: Site) -> bool:
    """Put another cuDNN on LD_LIBRARY_PATH, with any of its spellings.

    The RPATH of cuDNN 9.27 and newer precedes LD_LIBRARY_PATH, so that its libraries do not mix.
    """
    if site.image or "LD_LIBRARY_PATH" in site.truths or site.wheel.key >= (9, 27):
        return False
    found = other_folder(site, rng)
    if found is None:
        return False
    folder, _ = found
    old = site.environment.get("LD_LIBRARY_PATH", "")
    site.former["LD_LIBRARY_PATH"] = old
    kind = rng.choice(["plain", "first", "semicolon", "slash", "empty", "relative"])
    if kind in ("empty", "relative"):
        site.work = folder if kind == "empty" else folder.parent
        entry = {"empty": "", "relative": "lib"}[kind]
        site.environment["LD_LIBRARY_PATH"] = f"{entry}:/usr/local/nvidia/lib" + (f":{old}" if old else "")
    else:
        entry = {"plain": f"{folder}", "first": f"{folder}:/usr/lib", "semicolon": f"/usr/local/x;{folder}",
                 "slash": f"{folder}//"}[kind]  # fmt: skip
        site.environment["LD_LIBRARY_PATH"] = entry + (f":{old}" if old else "")
    return blame(site, "path_shadow", "LD_LIBRARY_PATH", {"shadowed", "mixed-at-run-time"}, "LD_LIBRARY_PATH",
                 str(folder), by_hand=False)  # fmt: skip


def path_nvrtc(rng: random.Random, site: Site) -> bool:
    """Put a libnvrtc without the library of its builtins on LD_LIBRARY_PATH."""
    if site.image or "LD_LIBRARY_PATH" in site.truths or site.wheel.key >= (9, 21) or "nvrtc" in site.truths:
        return False
    name = f"libnvrtc.so.{site.wheel.cuda}"
    files.write(site.root / "added/lib" / name, make_elf(name))
    old = site.environment.get("LD_LIBRARY_PATH", "")
    site.former["LD_LIBRARY_PATH"] = old
    site.environment["LD_LIBRARY_PATH"] = f"{site.root}/added/lib" + (f":{old}" if old else "")
    folder = str(site.root / "added/lib")
    return blame(site, "path_nvrtc", "LD_LIBRARY_PATH", {"missing-nvrtc"}, folder, by_hand=False)


def preload(rng: random.Random, site: Site) -> bool:
    """Preload a library of another cuDNN."""
    if site.image or "LD_PRELOAD" in site.environment:
        return False
    found = other_folder(site, rng)
    if found is None:
        return False
    name = rng.choice(["libcudnn_graph.so.9", "libcudnn.so.9"])
    separator = rng.choice([" ", ":"])
    site.environment["LD_PRELOAD"] = rng.choice(["", "/lib/x86_64-linux-gnu/libz.so.1" + separator]) + str(
        found[0] / name
    )
    return blame(site, "preload", "LD_PRELOAD", {"preloaded"}, "LD_PRELOAD", by_hand=False)


def pin(rng: random.Random, site: Site) -> bool:
    """Install a package that requires another cuDNN, with the libraries of CUDA that it requires."""
    if site.packages is None or site.owner != "pip":
        return False
    known = {each.name for each in site.consumers}
    choices = [
        each
        for each in consumers.CONSUMERS
        if not each.accepts(site.wheel)
        and each.name not in known
        and each.name != "tensorflow"  # it works with others, or without
    ]
    if not choices:
        return False
    consumer = rng.choice(choices)
    able = [wheel for wheel in wheels.cudnns() if consumer.accepts(wheel)
            and all(each.accepts(wheel) for each in site.consumers)]  # fmt: skip
    consumer.install(site.packages)
    site.consumers.append(consumer)
    for name in wheels.COMPANIONS[consumer.cuda]:  # its other requirements are met
        if not any(site.packages.glob(name.replace("-", "_") + "-*.dist-info")):
            version = pinned(name, [consumer])
            each = wheels.companion(name)
            (relabel(each, version) if version else each).install(site.packages)
    return blame(
        site, "pin", f"pin of {consumer.name}", {"consumer-mismatch"}, consumer.name, by_hand=not able
    )


def expect(rng: random.Random, site: Site) -> bool:
    """Require another version."""
    if site.flags and any("=" in flag or flag.startswith("--m") for flag in site.flags):
        return False
    now = Version(site.wheel.version)
    flags = rng.choice(
        [["--min", f"9.{now.minor + 1}"], ["--max", f"9.{now.minor - 1}"], ["--expect", f"9.{now.minor + 2}"]]
    )
    site.flags += flags
    return blame(
        site, "expect", "version", {"unexpected-version"}, site.wheel.version[:4], flags[1], by_hand=True
    )


def setting(rng: random.Random, site: Site) -> bool:
    """Name a library that does not exist in CUDNN_CT_LIBRARY."""
    if site.subject is not None:
        return False
    site.environment["CUDNN_CT_LIBRARY"] = str(
        site.root / rng.choice(["gone/libcudnn.so.9", "libcudnn.so.8"])
    )
    site.truths.clear()  # the doctor examines no other cuDNN then
    return blame(site, "setting", "CUDNN_CT_LIBRARY", {"wrong-setting"}, by_hand=True)


def system_gone(rng: random.Random, site: Site) -> bool:
    """Remove a library of the system from an image."""
    if not site.image:
        return False
    name = rng.choice(["libz.so.1", "libstdc++.so.6", "libgcc_s.so.1"])
    if name in site.truths:
        return False
    files.remove(site.root / "usr/lib/x86_64-linux-gnu" / name)
    for path in site.root.rglob(name):
        files.remove(path)
    return blame(site, "system_gone", name, {"missing-system-library"}, by_hand=True)


def runpath_gone(rng: random.Random, site: Site) -> bool:
    """Remove the RPATH or RUNPATH of libcudnn, as patchelf --remove-rpath does."""
    name = "libcudnn.so.9"
    if site.layout == "system" or name not in whole(site):  # the linker searches that of the system
        return False
    if str(site.folder) in site.environment.get("LD_LIBRARY_PATH", "").split(":"):
        return False
    path = site.library(name)
    data = bytearray(path.read_bytes())
    offset = struct.unpack_from("<Q", data, 32)[0]
    size, number = struct.unpack_from("<HH", data, 54)
    rows = [struct.unpack_from("<IIQQQQ", data, offset + size * row) for row in range(number)]
    start, length = next((row[2], row[5]) for row in rows if row[0] == 2)  # PT_DYNAMIC
    for at in range(start, start + length, 16):
        if struct.unpack_from("<Q", data, at)[0] in (15, 29):  # DT_RPATH, DT_RUNPATH
            struct.pack_into("<Q", data, at, 21)  # DT_DEBUG, which the linker ignores in a library
    files.write(path, bytes(data))
    return blame(site, "runpath_gone", name, {"lost-runpath", "altered-file", "load-failed", "probe-crashed"})


def hwcaps(rng: random.Random, site: Site) -> bool:
    """Put a library of another version into the folder for newer processors, which glibc searches first."""
    choices = [
        (each, name)
        for each in others(site)
        for name in whole(site)
        if name in each.names() and name[8] == "_"
    ]
    if not choices or site.layout in ("annex", "farm"):
        return False
    other, name = rng.choice(choices)
    folder = site.folder / "glibc-hwcaps" / rng.choice(["x86-64-v2", "x86-64-v3"])
    files.place(other.source(name), folder / name)
    return blame(
        site, "hwcaps", "hwcaps", {"shadowed", "mixed-at-run-time"}, str(folder), name, by_hand=False
    )


def preload_file(rng: random.Random, site: Site) -> bool:
    """Name a library of another cuDNN in the /etc/ld.so.preload of an image."""
    if not site.image or "preload file" in site.truths:
        return False
    found = other_folder(site, rng)
    if found is None:
        return False
    path = found[0] / rng.choice(["libcudnn_graph.so.9", "libcudnn_ops.so.9"])
    inside = "/" + str(path.relative_to(site.root))
    files.write(site.root / "etc/ld.so.preload", f"# tracing\n{inside}\n".encode())
    return blame(site, "preload_file", "preload file", {"preloaded"}, "ld.so.preload", by_hand=True)


def private_parent(rng: random.Random, site: Site) -> bool:
    """Let only the owner enter a folder above the libraries."""
    if site.packages is None or site.owner != "pip" or site.layout == "annex":
        return False
    folder = rng.choice([site.folder.parent, site.folder.parent.parent])
    folder.chmod(0o700)
    return blame(site, "private_parent", "parent", {"private-file"}, str(folder), by_hand=False)


def old_alternative(rng: random.Random, site: Site) -> bool:
    """Let Debian's alternatives select the header of cuDNN 8."""
    if site.layout != "system":
        return False
    headers = "usr/include/x86_64-linux-gnu"
    text = "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 9\n#define CUDNN_PATCHLEVEL 7\n"
    files.write(site.root / headers / "cudnn_version_v8.h", text.encode())
    link = site.root / "etc/alternatives/cudnn_version_h"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(f"/{headers}/cudnn_version_v8.h")
    (site.root / "usr/include/cudnn_version.h").symlink_to("/etc/alternatives/cudnn_version_h")
    return blame(
        site, "old_alternative", "alternative", {"header-mismatch"}, "cudnn_version.h", by_hand=False
    )


def restore(rng: random.Random, site: Site) -> bool:
    """Undo an earlier operation on one library: put the right file back."""
    undone = [name for name in site.truths if name in site.libraries() and site.truths[name].operation in
              ("delete", "truncate", "empty", "junk", "dangle", "swap", "machine", "flip")]  # fmt: skip
    if not undone or site.layout in ("annex", "archive", "conda", "system", "farm"):
        return False
    name = rng.choice(undone)
    files.remove(site.folder / name)
    site.wheel.lay_file(site.wheel.source(name), site.folder / name)
    del site.truths[name]
    return True


def harmless_variable(rng: random.Random, site: Site) -> bool:
    """Set variables that change nothing."""
    name, value = rng.choice([
        ("LD_LIBRARY_PATH", str(site.folder)), ("LD_LIBRARY_PATH", "/nonexistent:/usr/local/nvidia/lib64"),
        ("LD_LIBRARY_PATH", ""), ("LD_LIBRARY_PATH", ":"), ("LD_PRELOAD", ""),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("CUDNN_PATH", str(site.folder.parent)), ("CUDNN_LOGLEVEL_DBG", "0"), ("PYTHONPATH", "/nonexistent"),
        ("LC_ALL", "C"), ("CUDA_VISIBLE_DEVICES", ""), ("LD_BIND_NOW", "1"), ("PATH", "/usr/bin:/bin"),
    ])  # fmt: skip
    if name in site.environment or name in site.truths:
        return False
    site.environment[name] = value
    return True


def harmless_files(rng: random.Random, site: Site) -> bool:
    """Add files that do not belong to cuDNN, or that programs leave next to it."""
    kind = rng.choice(["link", "note", "other", "times", "backup"])
    if kind == "link":
        if os.path.lexists(site.folder / "libcudnn.so") or not (site.folder / "libcudnn.so.9").is_file():
            return False
        (site.folder / "libcudnn.so").symlink_to("libcudnn.so.9")
    elif kind == "note":
        files.write(site.folder / "README.txt", b"text\n")
        files.write(site.folder / "__pycache__/x.cpython-311.pyc", b"\0" * 16)
    elif kind == "other":
        source = next(
            Path(each) / "libz.so.1" for each in SYSTEM_FOLDERS if (Path(each) / "libz.so.1").exists()
        )
        files.place(source.resolve(), site.folder.parent / "tools/libnotours.so.1")
    elif kind == "times":
        name = small_library(rng, site)
        if name is None:
            return False
        files.own(site.library(name))
        os.utime(site.library(name), (0, 0))
    else:
        files.write(site.root / "backup/libcudnn.so.9.tar", b"\0" * 1024)
    return True


def harmless_metadata(rng: random.Random, site: Site) -> bool:
    """Delete the metadata of cuDNN, as images do to save space; no package requires it."""
    if site.packages is None or site.consumers or site.truths or site.owner != "pip":
        return False
    if (site.folder / "old").exists():  # then any folder may be the one in use
        return False
    files.remove(site.packages / site.wheel.info)
    return True


def harmless_copy(rng: random.Random, site: Site) -> bool:
    """Keep a library of another version in a folder that no program searches."""
    names = [(each, name) for each in others(site) for name in sorted(each.names())]
    if not names or site.packages is None or site.owner != "pip" or site.layout == "annex":
        return False
    if not (site.packages / site.wheel.info).is_dir():
        return False
    other, name = rng.choice(names)
    folder = site.folder / rng.choice(["old", "stubs"])
    if site.layout == "venv" and rng.random() < 0.4:
        folder = site.packages.parents[1] / "python3.7/site-packages/nvidia/cudnn/lib"
        files.write(folder.parents[2] / other.info / "RECORD", f"nvidia/cudnn/lib/{name},,\n".encode())
    files.place(other.source(name), folder / name)
    return True


def harmless_package(rng: random.Random, site: Site) -> bool:
    """Install a package that has nothing to do with cuDNN."""
    if site.packages is None:
        return False
    name = rng.choice(["requests", "nvidia-ml-py", "numpy", "cudnn-tools"])
    module = name.replace("-", "_")
    files.write(site.packages / module / "__init__.py", b"")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    wheels.install_metadata(site.packages, name, "1.0", metadata, [f"{module}/__init__.py"])
    return True


def little_memory(rng: random.Random, site: Site) -> bool:
    """Limit the address space of the doctor to two gigabytes, which reading files must not need."""
    if "--static" not in site.flags:
        return False
    site.memory = 2 << 30
    return True


LAST = ("cache_gone", "moved_aside")  # after them no file is left for other operations
BREAKAGES: tuple[Operation, ...] = (
    delete, delete_many, truncate, empty, junk, dangle, swap, swap, overlay, machine, private, writable,
    header, header_gone, stray, two_wheels, uninstalled_other, stale, record_junk, flip, zero_tables,
    zero_half, convert_lines, cache_gone, moved_aside, path_nvrtc,
    cublas_gone, cublas_cut, nvrtc_gone, toolkit_gone, toolkit_gone, relink, driver_missing, driver_fails,
    unversioned, driver_fails, driver_of_wsl, path_shadow, path_shadow, preload, pin, pin, expect,
    text_links, text_links, unpacked_over, unpacked_over, old_wheel, interrupted, shared_base,
    system_gone, setting, runpath_gone, hwcaps, preload_file, private_parent, old_alternative, rename, rename,
)  # fmt: skip
HARMLESS: tuple[Operation, ...] = (
    harmless_variable,
    harmless_files,
    harmless_package,
    harmless_metadata,
    harmless_copy,
    little_memory,
)
