"""Builders of sound installations: folders that look like environments, machines and images."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.doctor_drawn import consumers, files, wheels

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1",
          "libz.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2")  # fmt: skip
SYSTEM_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64")


@dataclass(frozen=True)
class Truth:
    """One thing that is wrong with a site.

    ``codes`` are the right names of the cause, ``names`` words of which a finding must contain one, and
    ``by_hand`` is True if no command can repair it.
    """

    operation: str
    codes: frozenset[str]
    names: tuple[str, ...]
    by_hand: bool = False


@dataclass
class Site:
    """A drawn installation, its truths, and how the doctor is run on it."""

    root: Path
    layout: str
    wheel: wheels.Wheel
    folder: Path  # of libcudnn.so.9
    subject: Path | None  # None: examine what this machine's programs use
    packages: Path | None = None  # site-packages
    owner: str = "pip"  # pip, conda, dpkg or none
    python: str = sys.executable
    consumers: list[consumers.Consumer] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    work: Path | None = None  # the current folder of the doctor
    image: bool = False
    memory: int | None = None
    wrap: list[str] = field(default_factory=list)  # a command that runs the doctor, on another machine
    linker: str = ""  # a folder that ldconfig has added to those that the linker searches
    truths: dict[str, Truth] = field(default_factory=dict)
    former: dict[str, str] = field(
        default_factory=dict
    )  # values of variables before an operation changed them

    def library(self, name: str) -> Path:
        """The file of a library, behind the links of a layout that links to versions or objects."""
        path = self.folder / name
        return path.resolve() if path.exists() else path

    def libraries(self) -> list[str]:
        """The names of the libraries of this site's version."""
        return sorted(Path(path).name for path in self.wheel.libraries())

    def companion(self, name: str) -> Path | None:
        """The library of CUDA with this beginning of its name, wherever the site has it."""
        folders = [self.root / "usr/local", self.root / "lib", self.packages, self.root]
        for folder in folders:
            if folder and folder.is_dir():
                for path in sorted(folder.rglob(name + ".so.*")):
                    return path
        return None


def relabel(wheel: wheels.Wheel, version: str) -> wheels.Wheel:
    """The same files as another release: a pin of a consumer names a release that this machine lacks."""
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {version}", wheel.metadata)
    minor = ".".join(version.split(".")[:2])
    sources = tuple(
        (re.sub(r"(builtins.*\.so)\.[\d.]+$", rf"\1.{minor}", path), source) for path, source in wheel.sources
    )
    return dataclasses.replace(wheel, version=version, metadata=metadata, sources=sources)


def pinned(name: str, chosen: list[consumers.Consumer]) -> str | None:
    """The version that a consumer pins, or the newest that it allows, unconditionally."""
    for consumer in chosen:
        for requirement in consumer.pins():
            for each in requirement.specifier if requirement.name == name else ():
                if each.operator in ("==", "<="):
                    return each.version.removesuffix(".*")
    return None


def draw_consumers(rng: random.Random, wheel: wheels.Wheel, most: int = 2) -> list[consumers.Consumer]:
    """Zero to two packages that work with a cuDNN."""
    fitting = [each for each in consumers.CONSUMERS if each.accepts(wheel)]
    return rng.sample(fitting, min(len(fitting), rng.randint(0, most)))


def fill(rng: random.Random, packages: Path, wheel: wheels.Wheel) -> list[consumers.Consumer]:
    """Install cuDNN, the libraries of CUDA and consumers into a site-packages."""
    chosen = draw_consumers(rng, wheel)
    for name in wheels.COMPANIONS[wheel.cuda]:
        each = wheels.companion(name)
        version = pinned(name, chosen)
        (relabel(each, version) if version else each).install(packages)
    wheel.install(packages)
    for consumer in chosen:
        consumer.install(packages)
    return chosen


def pip_site(root: Path, layout: str, wheel: wheels.Wheel, packages: Path, rng: random.Random) -> Site:
    """A site whose cuDNN pip installed into ``packages``."""
    packages.mkdir(parents=True, exist_ok=True)
    site = Site(root, layout, wheel, packages / "nvidia/cudnn/lib", packages, packages)
    site.consumers = fill(rng, packages, wheel)
    return site


def base_python() -> str:
    """The interpreter that virtual environments link to."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def venv(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """A virtual environment; its own Python may run the doctor, without a path."""
    prefix = root / rng.choice(["venv", "my env", ".venv", "app/venv-3"])
    packages = prefix / "lib" / PYTHON / "site-packages"
    site = pip_site(root, "venv", wheel, packages, rng)
    (prefix / "bin").mkdir()
    for name in ("python", "python3", PYTHON):
        (prefix / "bin" / name).symlink_to(base_python())
    home = Path(base_python()).parent
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    kind = rng.choice(["packages", "prefix", "own"])
    if kind == "prefix":
        site.subject = prefix
    elif kind == "own":
        site.subject, site.python = None, str(prefix / "bin" / PYTHON)
    return site


def user_site(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """The user's site-packages below the home folder."""
    site = pip_site(root, "user", wheel, root / "home/.local/lib" / PYTHON / "site-packages", rng)
    site.environment["HOME"] = str(root / "home")
    site.python = base_python()
    if rng.random() < 0.5:
        site.subject = None
    return site


def target(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """A folder of ``pip install --target``."""
    return pip_site(root, "target", wheel, root / rng.choice(["deps", "layer/python"]), rng)


def farm(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """One repository for each wheel, as Bazel unpacks them, and a site-packages of links to folders or files.

    A folder of cuDNN that is a link leads its RUNPATH astray. A package must then open the libraries of CUDA
    first, as torch and JAX do.
    """
    packages = root / "app.runfiles/venv/lib" / PYTHON / "site-packages"
    packages.mkdir(parents=True)
    chosen = draw_consumers(rng, wheel)
    openers = any(each.name.startswith(("torch", "jax")) for each in chosen)
    folders = openers and rng.random() < 0.7
    for name in [*wheels.COMPANIONS[wheel.cuda], wheel.name]:
        each = wheel if name == wheel.name else wheels.companion(name)
        version = pinned(name, chosen)
        repository = root / "external" / f"pip_{name.replace('-', '_')}" / "site-packages"
        (relabel(each, version) if version and name != wheel.name else each).install(repository)
        for path in repository.glob("*.dist-info"):
            (packages / path.name).symlink_to(path)
        for path in (repository / "nvidia").iterdir():
            link = packages / "nvidia" / path.name
            link.parent.mkdir(exist_ok=True)
            if link.is_symlink():  # the wheels of CUDA 13 share a folder: it becomes one of links to files
                old = link.resolve()
                link.unlink()
                link_files(old, link)
            if link.exists() or not folders:
                link_files(path, link)
            else:
                link.symlink_to(path)
    for consumer in chosen:
        consumer.install(packages)
    return Site(
        root, "farm", wheel, packages / "nvidia/cudnn/lib", packages, packages, "none", consumers=chosen
    )


def link_files(source: Path, folder: Path) -> None:
    """Link every file of a folder at the same relative path."""
    for path in source.rglob("*"):
        if path.is_file():
            link = folder / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)


def annex(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """A site-packages in git-annex: each large file is a link to an object that is named by its hash."""
    packages = root / "repository" / "site-packages"
    site = pip_site(root, "annex", wheel, packages, rng)
    site.owner = "none"
    objects = root / "repository/.git/annex/objects"
    for number, path in enumerate(sorted(packages.rglob("*.so*"))):
        name = f"SHA256E-s{path.stat().st_size}--{number:064x}"
        goal = objects / f"{number:03x}"[:2] / f"{number:03x}"[1:] / name / name
        goal.parent.mkdir(parents=True)
        path.rename(goal)
        path.symlink_to(os.path.relpath(goal, path.parent))
    return site


def archive(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """NVIDIA's archive, unpacked next to an archive of CUDA."""
    top = root / f"cudnn-linux-x86_64-{wheel.version}_cuda{wheel.cuda}-archive"
    for path, source in wheel.sources:
        if path.startswith("nvidia/cudnn/include/"):
            wheel.lay_file(source, top / "include" / Path(path).name)
    versioned(wheel, top / "lib")
    files.write(top / "LICENSE", b"license\n")
    toolkit(root / f"cuda-{wheel.cuda}", wheel)
    site = Site(
        root, "archive", wheel, top / "lib", top / rng.choice(["", "lib"]), None, "none", base_python()
    )
    site.environment["LD_LIBRARY_PATH"] = str(root / f"cuda-{wheel.cuda}/lib64")
    if rng.random() < 0.5:
        site.environment["CUDNN_PATH"] = str(top)
    return site


def versioned(wheel: wheels.Wheel, folder: Path) -> None:
    """Lay libraries with their full version, and the links that archives and system packages have."""
    patch = ".".join(wheel.version.split(".")[:3])
    for path, source in wheel.sources:
        name = Path(path).name
        if ".so." in name:
            stem = name.split(".so.")[0]
            wheel.lay_file(source, folder / f"{stem}.so.{patch}")
            (folder / name).symlink_to(f"{stem}.so.{patch}")
            (folder / f"{stem}.so").symlink_to(name)


def toolkit(top: Path, wheel: wheels.Wheel) -> None:
    """Lay the libraries of CUDA in the layout of a toolkit, with lib64 as a link."""
    for name in wheels.COMPANIONS[wheel.cuda]:
        each = wheels.companion(name)
        for path, source in each.sources:
            if ".so" in Path(path).name:
                each.lay_file(source, top / "targets/x86_64-linux/lib" / Path(path).name)
    (top / "lib64").symlink_to("targets/x86_64-linux/lib")


def machine(root: Path, name: str = "debian") -> None:
    """An image root with the C library, the dynamic linker and their packages."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (root / "usr/lib64").mkdir()
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    for library in SYSTEM:
        for directory in SYSTEM_FOLDERS:
            source = Path(directory) / library
            if source.exists():
                files.place(source.resolve(), folder / library)
                break
    (root / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for path, text in {
        "etc/os-release": f'ID={name}\nVERSION_ID="12"\n',
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/x86_64-linux-gnu.conf": "/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n",
        "var/lib/dpkg/status": "",
    }.items():
        files.write(root / path, text.encode())
    for path in ("usr/bin/apt-get", "usr/bin/dpkg", "usr/bin/dash"):
        files.write(root / path, b"\x7fELF")
        (root / path).chmod(0o755)
    (root / "bin").symlink_to("usr/bin")


def system(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """An image with the system packages of cuDNN and of a CUDA toolkit, such as NVIDIA's."""
    root = root / "image"
    machine(root, rng.choice(["debian", "ubuntu"]))
    folder = root / "usr/lib/x86_64-linux-gnu"
    versioned(wheel, folder)
    for path, source in wheel.sources:
        if path.startswith("nvidia/cudnn/include/"):
            wheel.lay_file(source, root / "usr/include/x86_64-linux-gnu" / Path(path).name)
    major = {"12": "12.9", "13": "13.2"}[wheel.cuda]
    toolkit(root / f"usr/local/cuda-{major}", wheel)
    (root / "usr/local/cuda").symlink_to(f"cuda-{major}")
    files.write(root / "etc/ld.so.conf.d/cuda.conf", b"/usr/local/cuda/targets/x86_64-linux/lib\n")
    package = f"libcudnn9-cuda-{wheel.cuda}"
    status = f"Package: {package}\nStatus: install ok installed\nArchitecture: amd64\n"
    status += f"Version: {wheel.version}-1\n\n"
    files.write(root / "var/lib/dpkg/status", status.encode())
    listed = sorted(f"/usr/lib/x86_64-linux-gnu/{path.name}" for path in folder.glob("libcudnn*.so.*"))
    files.write(root / f"var/lib/dpkg/info/{package}.list", ("/.\n" + "\n".join(listed) + "\n").encode())
    return Site(root, "system", wheel, folder, root, None, "dpkg", image=True)


def image(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """An image whose Python has the wheels."""
    root = root / "rootfs"
    machine(root)
    packages = root / rng.choice(
        [
            "usr/local/lib/python3.12/site-packages",
            "opt/venv/lib/python3.11/site-packages",
            "usr/local/lib/python3.10/dist-packages",
        ]
    )
    site = pip_site(root, "image", wheel, packages, rng)
    prefix = packages.parents[2]
    name = packages.parent.name
    files.write(prefix / "bin" / name, b"\x7fELF")
    (prefix / "bin" / name).chmod(0o755)
    for link in ("python3", "python"):
        (prefix / "bin" / link).symlink_to(name)
    site.subject, site.image = root, True
    return site


def conda(rng: random.Random, root: Path, wheel: wheels.Wheel) -> Site:
    """A conda environment with packages of conda-forge."""
    prefix = root / rng.choice(["envs/gpu", "miniforge3"])
    versioned(wheel, prefix / "lib")
    for path, source in wheel.sources:
        if path.startswith("nvidia/cudnn/include/"):
            wheel.lay_file(source, prefix / "include" / Path(path).name)
    owned = {"libcudnn": sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*cudnn*"))}
    for name in wheels.COMPANIONS[wheel.cuda]:
        each = wheels.companion(name)
        package = "libcublas" if "cublas" in name else "cuda-nvrtc" if "nvrtc" in name else "cuda-cudart"
        owned[package] = []
        for path, source in each.sources:
            if ".so" in Path(path).name:
                each.lay_file(source, prefix / "lib" / Path(path).name)
                owned[package].append(f"lib/{Path(path).name}")
    for library in ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1"):
        for directory in SYSTEM_FOLDERS:
            source = Path(directory) / library
            if source.exists():
                files.place(source.resolve(), prefix / "lib" / library)
                break
    files.write(prefix / "conda-meta/history", b"==> 2026-01-01 00:00:00 <==\n")
    for package, paths in owned.items():
        version = ".".join(wheel.version.split(".")[:4]) if package == "libcudnn" else f"{wheel.cuda}.9"
        row = {"name": package, "version": version, "build": "h0", "build_number": 0,
               "depends": [], "files": paths,
               "channel": "https://conda.anaconda.org/conda-forge/linux-64"}  # fmt: skip
        files.write(prefix / f"conda-meta/{package}-{version}-h0.json", json.dumps(row).encode())
    site = Site(root, "conda", wheel, prefix / "lib", prefix, None, "conda", base_python())
    if rng.random() < 0.5:
        site.environment["CONDA_PREFIX"] = str(prefix)
    return site


LAYOUTS: tuple[tuple[Callable[[random.Random, Path, wheels.Wheel], Site], int], ...] = (
    (venv, 6), (user_site, 2), (target, 2), (image, 3), (system, 3), (conda, 2), (archive, 2),
    (farm, 1), (annex, 1),
)  # fmt: skip


def draw(rng: random.Random, root: Path) -> Site:
    """A sound site of any layout."""
    build = rng.choices([each for each, _ in LAYOUTS], [weight for _, weight in LAYOUTS])[0]
    wheel = rng.choice(wheels.cudnns())
    root.mkdir(parents=True, exist_ok=True)
    site = build(rng, root, wheel)
    if wheel.cuda == "13" or rng.random() < 0.7:
        site.flags.append("--static")  # the libraries of CUDA 13 are skeletons, which no process can run
    return site
