"""Find the site-packages of the Python on which a virtual environment is based."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .. import _files

_SETTING = re.compile(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", re.MULTILINE)
MAX_LEVELS = 6  # folders between an environment and a folder of its site-packages


def base_sites(path: str) -> list[str]:
    """List the site-packages that the virtual environment around a path shares; empty if it shares none."""
    settings = _settings(path)
    if settings.get("include-system-site-packages", "").lower() != "true" or "home" not in settings:
        return []
    version = re.match(r"3\.\d+", settings.get("version") or settings.get("version_info") or "")
    sites = _sites(os.path.dirname(settings["home"]), f"python{version[0] if version else '3'}")
    return [site for site in dict.fromkeys(sites) if os.path.isdir(site)]


def _settings(path: str) -> dict[str, str]:
    """Read the pyvenv.cfg of the environment around a path."""
    for _ in range(MAX_LEVELS):
        try:
            return dict(_SETTING.findall(_files.text_of(os.path.join(path, "pyvenv.cfg"))))
        except OSError:
            path = os.path.dirname(path)
    return {}


def _sites(prefix: str, python: str) -> Iterator[str]:
    """Yield the folders that the site module of Python adds, in its order, also those of Debian."""
    yield os.path.join(os.path.expanduser("~/.local"), "lib", python, "site-packages")
    if prefix == "/usr":
        yield f"/usr/local/lib/{python}/dist-packages"
        yield "/usr/lib/python3/dist-packages"
    for library in ("lib64", "lib"):
        yield os.path.join(prefix, library, python, "site-packages")
