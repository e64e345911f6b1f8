"""The links of the project on a package index: a hook of hatchling, which runs when a package is built.

pyproject.toml has the address of the repository. The publisher sets it; without it a package has no links.
"""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["Links", "links"]


class Links(MetadataHookInterface):  # type: ignore[misc]
    """The hook: it fills ``[project.urls]``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the links to the metadata of the project."""
        metadata["urls"] = links(self.config.get("repository", ""))


def links(repository: str) -> dict[str, str]:
    """Return the links to show for an address such as ``https://host/owner/name``; none if it is empty."""
    base = repository.rstrip("/")
    if not base:
        return {}
    return {
        "Repository": base,
        "Issues": f"{base}/issues",
        "Changelog": f"{base}/blob/HEAD/CHANGELOG.md",
        "Documentation": f"{base}/blob/HEAD/docs/what-it-is.md",
    }
