"""The list of graphs and the page of support are what their tools write."""

from __future__ import annotations

import json
import re

import pytest

from cudnn_ct.graph.recording import read_requests
from tests.processes import ROOT, run_python


@pytest.mark.parametrize("tool", ["support_list", "support_matrix", "jit_operations"])
def test_generated_file_is_up_to_date(tool: str) -> None:
    done = run_python(f"tools/{tool}.py", "--check", cwd=ROOT)
    assert done.returncode == 0, f"run: python tools/{tool}.py {done.stderr[-1000:]}"


def test_table_of_versions_names_each_fact_once_in_a_row_and_the_enums() -> None:
    _, _, table = (
        (ROOT / "docs" / "support.md").read_text(encoding="utf-8").partition("<!-- begin: versions -->")
    )
    rows = [
        line for line in table.partition("<!-- end: versions -->")[0].splitlines() if line.startswith("| 9.")
    ]
    assert "14 of `BackendAttributeName`" in rows[1]
    for row in rows:
        names = re.findall(r"`([\w.-]+)` \(", row)
        assert len(names) == len(set(names)), row


def test_support_list_has_500_graphs_that_supports_reads() -> None:
    content = json.loads((ROOT / "tests" / "support_graphs.json").read_text(encoding="utf-8"))
    requests = read_requests(content)
    assert len(requests) == len({row["name"] for row in content["graphs"]}) == 500
