"""The report of the calls of blocks of ``enable()``."""

from __future__ import annotations

from collections import Counter

__all__ = ["Report"]


class Report:
    """The calls of a block: how many were served, and why others were left to torch.

    Attributes
    ----------
    served : Counter
        The number of calls that operators served, by group.
    left : Counter
        The number of calls left to torch, by group and reason.
    library : str
        The cuDNN that serves, once a call was served.
    """

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.left: Counter[tuple[str, str]] = Counter()

    @property
    def library(self) -> str:
        """The version and path of the cuDNN of this process; empty before a call was served."""
        if not self.served:
            return ""
        from .._info import library_info

        info = library_info()
        return f"cuDNN {info.version} in {info.path}"

    def __str__(self) -> str:
        lines = [f"served  {group}: {count}" for group, count in sorted(self.served.items())]
        lines += [f"torch   {group}: {count}, {why}" for (group, why), count in sorted(self.left.items())]
        return "\n".join([*lines, *([self.library] if self.served else [])]) or "no calls"
