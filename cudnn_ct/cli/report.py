"""``cudnn-ct report``: write the engines that computed wrong results on this machine to a file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .. import __version__
from .._cache_files import replace_file
from ..certify.certificates import wrong_engines
from ..graph.plan_store import folder_store
from .errors import NOTHING, fail
from .options import OUTPUT
from .table import say, show

FORMAT = "cudnn_ct report 1"
COLUMNS = (("engine", False), ("cuDNN", False), ("GPU", False), ("finding", False))


@click.command(name="report")
@click.argument("path", default="cudnn-ct-report.json", type=OUTPUT)
def command(path: str) -> None:
    """Write the engines whose results differed from a second opinion to PATH, for a bug report.

    The file has the graph, the engine, the difference, the versions and the GPU, and nothing else of this
    machine.
    """
    if folder_store().path is None:
        fail("certificates are not kept: CUDNN_CT_ALGO_CACHE is off", NOTHING)
    rows = wrong_engines()
    if not rows:
        say("no engine has computed a wrong result on this machine: nothing is written")
        return
    report = {"format": FORMAT, "cudnn_ct": __version__, "engines": rows}
    replace_file(Path(path), (json.dumps(report, indent=1) + "\n").encode())
    show(COLUMNS, [[row["engine"], row["cudnn"], row["gpu"], row["finding"]] for row in rows])
    say(f"{len(rows)} written to {path}")
