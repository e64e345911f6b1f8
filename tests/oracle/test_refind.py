"""The command that finds known defects again with their fixes taken out."""

from __future__ import annotations

import re

import pytest

import cudnn_ct as ct
from cudnn_ct import facts
from cudnn_ct.certify import certificates
from cudnn_ct.graph.offline import target_of
from cudnn_doctor.read.versions import table

from . import refind
from .determinism_draws import GRAPHS, LARGE
from .draw import RECIPES, SHARED, draw
from .graph_draws import FAMILIES
from .without import MEASUREMENT, VARIABLE, take_out


def test_fixes_and_draws_exist() -> None:
    names = {row["name"] for row in table()} | {MEASUREMENT}
    drawn = {*RECIPES, *FAMILIES, *GRAPHS, *LARGE}
    for defect in refind.DEFECTS:
        assert names.issuperset(defect.without)
        assert drawn.intersection(defect.draws)


def test_calls_of_the_wide_heads_are_drawn() -> None:
    texts = (str(draw(0, number, "gpu", ["attention_backward"], SHARED)) for number in range(refind.RARE))
    wide = [text for text in texts if re.search(refind.WIDE, text)]
    assert len(wide) > 50
    assert all("offsets_q" in text for text in wide)


def test_fixes_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = certificates._count_results
    monkeypatch.setattr(certificates, "_count_results", measured)
    monkeypatch.setenv(VARIABLE, f"native-broadcasts,{MEASUREMENT}")
    fact = next(
        one
        for one in facts.facts("reject", "native graph", target_of(None))
        if one.name == "native-broadcasts"
    )
    assert not facts.ignores(fact.name)
    take_out()
    try:
        assert facts.ignores(fact.name)
        assert certificates._count_results is not measured
    finally:
        facts.ignore(())
    monkeypatch.delenv(VARIABLE)
    take_out()
    assert not facts.ignores(fact.name)


def test_findings_of_all_draws_are_read() -> None:
    output = """seed 3: 4 calls
FINDING dq differs by 0.5
    attention_backward(offsets_q=...)
    python -m tests.oracle --seed 3 --number 7
wrong    float16: conv filter 3, relu
  engine 2: y[0] is 1, expected 2
  python -m tests.oracle.random_graphs --seed 3 --graph 1 --variant 0
rejected float16: conv data
"""
    found = refind._findings(output, ".")
    assert [command.split()[-1] for _, command in found] == ["7", "0"]
    assert found[0][0].startswith("dq differs by 0.5 attention_backward(offsets_q")
    assert len(refind._findings(output, "conv filter")) == 1
    assert not re.search("FINDING", found[0][0])


def test_certificates_are_off_in_the_draws() -> None:
    code = "import cudnn_ct as ct; print(ct.config.certify, ct.config.algo_cache)"
    ran = refind._run(["timeit", "-n1", "-r1", code], (), refind.time.monotonic() + 60)
    assert ran.stdout.splitlines()[0].startswith("off "), ran.stdout
    assert ct.config.certify != "off"
