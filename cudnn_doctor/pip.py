"""Write pip commands for the Python that owns a site-packages; a command that fails leaves it as it was."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .read import files as _files

_LAYOUT = re.compile(r"(.*)/lib(?:64)?/python(3(?:\.\d+t?)?)/(site|dist)-packages")
STORE = ".cudnn-doctor"  # a folder in the site-packages, which other users cannot write


def inside(path: str, root: str) -> str:
    """Return a path as programs in an image name it."""
    return os.path.join("/", os.path.relpath(path, root))


class Pip(NamedTuple):
    """The pip for a site-packages; all paths are those inside the image."""

    site: str
    python: str
    flags: str = ""  # of ``install``, such as --user
    absent: bool = False  # the environment has no pip, as those that uv creates
    windows: bool = False  # whether its shell is that of Windows
    loose: bool = False  # a folder of ``pip install --target``, which belongs to no Python

    def install(self, pin: str, keep: bool = False) -> tuple[str, ...]:
        """Install a package; with ``keep`` it is installed already, and its dependencies stay as they are."""
        options = " --force-reinstall --no-deps" if keep else ""
        if self.loose:
            return self.replace(pin, keep=True)
        if self.windows:
            words = [self.python, "-m", "pip", "install", *options.split(), pin]
            return (_for_windows(words),)
        return (*self._start(), f"{self._pip} install{self.flags}{options} {shlex.quote(pin)}")

    def again(self, pin: str, delete: Sequence[str]) -> tuple[str, ...]:
        """Install a package again, after deleting the files at which pip fails."""
        return self.replace(pin, delete, keep=True) if delete else self.install(pin, keep=True)

    def upgrade(self, package: str) -> tuple[str, ...]:
        """Install the newest version of a package; nothing for a folder without a Python."""
        if self.loose:
            return ()
        return (*self._start(), f"{self._pip} install{self.flags} --upgrade {shlex.quote(package)}")

    def replace(
        self,
        pin: str,
        delete: Sequence[str] = (),
        packages: Sequence[str] = (),
        keep: bool = False,
        pins: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Delete files, uninstall packages and install a package, which is downloaded before that.

        ``pins`` are the versions of its dependencies that other packages require.
        """
        if self.windows:
            return ()
        store = shlex.quote(os.path.join(self.site, STORE))
        quoted = shlex.quote(pin)
        remove = [f"rm -rf {' '.join(map(_quoted, delete))}"] if delete else []
        commands = [*self._start(), f"{self._pip} download --no-deps --dest {store} {quoted}", *remove]
        if self.loose:
            unpack = f"{self._python} -m zipfile -e {store}/*.whl {shlex.quote(self.site)}"
            return (*commands, unpack, f"rm -rf {store}")
        if packages:
            commands.append(self.uninstall(packages)[-1])
        options = f"{self.flags} --force-reinstall --no-deps --no-index --find-links {store}"
        commands += [f"{self._pip} install{options} {quoted}", f"rm -rf {store}"]
        if not keep:  # another version or CUDA may need other dependencies
            commands.append(f"{self._pip} install{self.flags} {' '.join([quoted, *map(shlex.quote, pins)])}")
        return tuple(commands)

    def uninstall(self, packages: Sequence[str]) -> tuple[str, ...]:
        """Uninstall packages; nothing for a folder without a Python."""
        if self.loose or self.windows:
            return ()
        names, flags = " ".join(map(shlex.quote, packages)), self.flags.replace(" --user", "")
        return (*self._start(), f"{self._pip} uninstall{flags} -y {names}")

    @property
    def _python(self) -> str:
        return shlex.quote(self.python)

    @property
    def _pip(self) -> str:
        return f"{self._python} -m pip"

    def _start(self) -> Iterator[str]:
        if self.absent:
            yield f"{self._python} -m ensurepip"


def of(site: str, root: str = "/", windows: bool = False) -> Pip:
    """Find the pip for a site-packages, or one without commands for files of Windows on another system."""
    ours = inside(site, root)
    if match := re.fullmatch(r"(.*)/Lib/site-packages", ours, re.IGNORECASE):
        return _of_windows(match[1], ours, root)
    if windows:
        return Pip(ours, "", windows=True, loose=True)
    layout = _LAYOUT.fullmatch(ours)
    prefix, version, kind = layout.groups() if layout else ("", "", "")
    user = os.path.basename(prefix) == ".local"
    # Debian's Python installs into /usr/local/lib/python3.11/dist-packages, others into their own prefix.
    debian = ["/usr/bin"] * (user or kind == "dist")
    bins = [*debian, *([] if user else [os.path.join(prefix, "bin")]), "/usr/local/bin"]
    names = [
        os.path.join(folder, f"python{end}")
        for folder in bins[:-1]
        for end in (version, version.rstrip("t"), "3", "")
    ]
    names += [os.path.join(bins[-1], f"python{version}")] * user
    exists = os.path.exists if root == "/" else os.path.lexists  # links in an image lead out of it
    known = layout and not is_orphan(site, root)
    python = next((name for name in names if exists(_at(name, root))), "") if known else ""
    if not python:
        return Pip(ours, sys.executable if root == "/" and sys.executable else "python3", loose=True)
    flags = " --user" if user else ""
    library = os.path.dirname(os.path.dirname(python)) + "/lib"
    marks = [name for name in _files.names_in(_at(library, root)) if name.startswith(f"python{version}")]
    if any(os.path.exists(_at(f"{library}/{name}/EXTERNALLY-MANAGED", root)) for name in marks):
        flags += " --break-system-packages"
    absent = shares(_at(prefix, root)) is False and not os.path.lexists(os.path.join(site, "pip"))
    return Pip(ours, python, flags, absent)


def is_orphan(site: str, root: str = "/") -> bool:
    """Return whether the Pythons of an environment have other versions than this site-packages."""
    layout = _LAYOUT.fullmatch(inside(site, root))
    prefix, version, kind = layout.groups() if layout else ("", "", "")
    folders = [f"{prefix}/bin", *["/usr/bin"] * (prefix == "/usr/local")]  # Fedora's Python installs there
    names = [name for folder in folders for name in _files.names_in(_at(folder, root))]
    pythons = {name.rstrip("t") for name in names if re.fullmatch(r"python3\.\d+t?", name)}
    own = f"python{version.rstrip('t')}"
    return kind == "site" and "." in version and bool(pythons) and own not in pythons


def shares(prefix: str) -> bool | None:
    """Return whether an environment uses the packages of the system, too; None for another folder."""
    try:
        return "include-system-site-packages = true" in _files.text_of(f"{prefix}/pyvenv.cfg")
    except OSError:
        return None


def windows_commands(commands: Sequence[str], root: str) -> tuple[str, ...]:
    """Convert commands that delete a file to those of Windows; others do not exist there."""
    if root == "/" and os.name != "nt":  # files that were copied to this machine
        return tuple(commands)
    paths = [shlex.split(each)[-1] for each in commands if each.startswith("rm ")]
    return tuple(f"del {_for_windows([_windows_path(path)])}" for path in paths)


def _windows_path(path: str) -> str:
    drive = "" if os.name == "nt" else "C:"  # of an unpacked image
    return drive + path.replace("/", "\\")


def _of_windows(prefix: str, site: str, root: str) -> Pip:
    names = (f"{prefix}/{name}" for name in ("Scripts/python.exe", "python.exe"))
    python = next((name for name in names if os.path.lexists(_at(name, root))), "")
    loose = not python or (root == "/" and os.name != "nt")  # the path on its own machine is unknown
    return Pip(site, _windows_path(python), windows=True, loose=loose)


def _quoted(path: str) -> str:
    """Quote a path for a shell, except a pattern in its last name."""
    folder, name = os.path.split(path)
    return f"{shlex.quote(folder)}/{name}" if "*" in name else shlex.quote(path)


def _at(path: str, root: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _for_windows(words: Sequence[str]) -> str:
    from subprocess import list2cmdline

    return list2cmdline(words)
