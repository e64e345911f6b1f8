"""The file that CUDNN_CT_FACTS names: rows of a user, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import facts, testing
from cudnn_ct.facts import FactsError, Target
from cudnn_ct.graph.engines import Engine
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.shapes.conv import conv_problem
from cudnn_ct.shapes.specs import TensorSpec

ROW = {
    "name": "mine",
    "kind": "engine",
    "operations": ["conv"],
    "when": ["float32"],
    "engines": [4],
    "effect": "wrong",
    "message": "wrong here",
}
CONV = conv_problem("forward", *(TensorSpec.packed((2, 4, 8, 8)), TensorSpec.packed((4, 4, 3, 3))))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    def written(text: str) -> Path:
        path = tmp_path / "facts.json"
        path.write_text(text)
        monkeypatch.setattr(ct.config, "facts", str(path))
        facts.forget()
        testing.reset()
        return path

    yield written
    monkeypatch.undo()
    facts.forget()
    testing.reset()


def test_a_row_of_a_user_rejects_an_engine_without_a_release(plant: Callable[..., None]) -> None:
    before = facts.digest()
    plant(**ROW)
    rules = engine_rules(CONV, Target(92801))
    assert rules.why_wrong(Engine(4), ()) == "wrong here"
    assert rules.why_wrong(Engine(5), ()) == ""
    assert facts.digest() != before, "older choices must expire"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"when": ["float31"]}, "when has an unknown condition: got 'float31'"),
        ({"kind": "engin"}, "kind is unknown: got 'engin'"),
        ({"effect": "bad"}, "effect is unknown: got 'bad'"),
        ({"operations": ["convolve"]}, "operations are unknown: got ['convolve']"),
        ({"operations": []}, "operations are unknown"),
        ({"engine": 4}, "a fact has no field 'engine'"),
        ({"engines": 4}, "engines has the wrong type: got int"),
        ({"message": None}, "message has the wrong type: got NoneType"),
    ],
)
def test_a_malformed_row_is_an_error_with_its_line(
    write: Callable[[str], Path], change: dict[str, Any], message: str
) -> None:
    good = json.dumps(ROW | {"name": "good"}, indent=1)
    path = write(f'{{"facts": [\n{good},\n{json.dumps(ROW | change, indent=1)}\n]}}')
    line = path.read_text().splitlines().index(' "name": "mine",') + 1
    with pytest.raises(FactsError) as caught:
        engine_rules(CONV, Target(92801))
    assert f"{path}: line {line}: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", 'line 1: got no list "facts"'),
        ('{"facts": [\n1]}', "a fact is not an object: got int"),
        (json.dumps({"facts": [{"name": "x"}]}), "the fact lacks kind, operations, when, effect, message"),
    ],
)
def test_a_file_without_facts_is_an_error(write: Callable[[str], Path], text: str, message: str) -> None:
    write(text)
    with pytest.raises(FactsError, match=message.replace("[", r"\[").replace("(", r"\(")):
        facts.digest()


def test_a_file_that_everybody_may_write_is_an_error(write: Callable[[str], Path]) -> None:
    path = write(json.dumps({"facts": [ROW]}))
    path.chmod(0o666)
    facts.forget()
    with pytest.raises(FactsError, match="world-writable and was not read; run: chmod o-w"):
        engine_rules(CONV, Target(92801))


def test_a_missing_file_is_an_error(write: Callable[[str], Path]) -> None:
    write("{}").unlink()
    facts.forget()
    with pytest.raises(OSError, match=r"facts\.json"):
        facts.digest()


def test_facts_can_be_ignored_in_a_block() -> None:
    target = Target(91900)

    def names() -> set[str]:
        return {fact.name for fact in facts.facts("engine", "conv", target)}

    assert "conv-select" in names()
    with pytest.raises(ValueError, match="not those of facts: got conv-selects"):
        facts.ignore(["conv-selects"])
    with testing.without_facts("conv-select"):
        assert "conv-select" not in names()
    assert "conv-select" in names()
