"""Choose the command that repairs a cuDNN: the same for all findings about it."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from .. import _files
from .._libraries import dotted
from .finding import REINSTALL

if TYPE_CHECKING:
    from .libraryset import LibrarySet

__all__ = ["command"]


def command(found: LibrarySet) -> str:
    """Return the command that installs this cuDNN again, after the removal of stale metadata."""
    names = sorted(owner.name for owner in found.owners)
    if len(names) > 1:
        reinstall = f"python -m pip uninstall -y {' '.join(names)} && python -m pip install {found.package}"
    elif names:
        pin = f"{names[0]}=={found.owners[0].version}"
        reinstall = f"python -m pip install --force-reinstall --no-deps {pin}"
    elif found.stale:
        version = f"{dotted(found.version)}.*" if found.version else found.stale[0].version
        pin = shlex.quote(f"{found.stale[0].name}=={version}")
        reinstall = f"python -m pip install --force-reinstall --no-deps {pin}"
    else:
        return REINSTALL
    return _removal(found) + reinstall


def _removal(found: LibrarySet) -> str:
    """Return the start of a command that deletes stale metadata, and libraries that only it records."""
    recorded = {path for owner in found.owners for path in owner.record}
    paths = []
    for owner in found.stale:
        site = os.path.dirname(owner.metadata)
        left = (os.path.join(site, path) for path in owner.record if recorded and path not in recorded)
        # A record may contain any path.
        ours = (path for path in left if _files.library_name(path) and os.path.dirname(path) == found.folder)
        paths += [owner.metadata, *filter(os.path.lexists, ours)]
    # The command runs in the image, where the paths start at its root.
    inside = [shlex.quote(os.path.join("/", os.path.relpath(path, found.root))) for path in paths]
    return f"rm -r {' '.join(inside)} && " if inside else ""
