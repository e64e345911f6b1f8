"""Find the folders of packages that a virtual environment has in addition to its own site-packages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .. import _files

_SETTING = re.compile(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", re.MULTILINE)
MAX_LEVELS = 6  # folders between an environment and a folder of its site-packages


def other_sites(path: str) -> list[str]:
    """List the folders that the environment around a path adds: those of .pth files, then of its base."""
    prefix, settings = _environment(path)
    library = os.path.join(prefix, "lib")
    names = [name for name in _files.names_in(library) if name.startswith("python3")] if prefix else []
    own = [path, *(os.path.join(library, name, "site-packages") for name in names)]
    added = [folder for site in own for folder in _of_pth_files(site)]
    shared = settings.get("include-system-site-packages", "").lower() == "true"
    base = _base(settings) if shared and "home" in settings else ()
    return [site for site in dict.fromkeys([*added, *base]) if os.path.isdir(site)]


def _environment(path: str) -> tuple[str, dict[str, str]]:
    """Return the folder of the environment around a path, and its pyvenv.cfg; empty if it is in none."""
    for _ in range(MAX_LEVELS):
        try:
            return path, dict(_SETTING.findall(_files.text_of(os.path.join(path, "pyvenv.cfg"))))
        except OSError:
            path = os.path.dirname(path)
    return "", {}


def _of_pth_files(site: str) -> Iterator[str]:
    """Yield the folders that the .pth files of a site-packages name, as Python reads them."""
    for name in _files.names_in(site):
        if name.endswith(".pth"):
            try:
                lines = _files.text_of(os.path.join(site, name)).splitlines()
            except OSError:
                continue
            for line in map(str.rstrip, lines):
                if line and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.normpath(os.path.join(site, line))


def _base(settings: dict[str, str]) -> Iterator[str]:
    """Yield the folders that the site module adds for the base of an environment, also those of Debian."""
    version = re.match(r"3\.\d+", settings.get("version") or settings.get("version_info") or "")
    prefix, python = os.path.dirname(settings["home"]), f"python{version[0] if version else '3'}"
    yield os.path.join(os.path.expanduser("~/.local"), "lib", python, "site-packages")
    if prefix == "/usr":
        yield f"/usr/local/lib/{python}/dist-packages"
        yield "/usr/lib/python3/dist-packages"
    for library in ("lib64", "lib"):
        yield os.path.join(prefix, library, python, "site-packages")
