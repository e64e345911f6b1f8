"""Docstrings of public names: their sections, and examples that run without a device."""

from __future__ import annotations

import doctest
import inspect
import re
from operator import attrgetter
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, testing
from cudnn_ct.descriptors import Descriptor
from tests.docstrings import all_examples, run

SECTIONS = re.compile(r"^([A-Z][a-z]+)\n-{4,}\n(.*?)(?=^[A-Z][a-z]+\n-{4,}\n|\Z)", re.MULTILINE | re.DOTALL)

# Public because public functions return them; the docstrings of these functions have the examples.
RETURNED = {
    "Availability",
    "BuiltGraph",
    "CapturedFunction",
    "ConvPlan",
    "GraphTensor",
    "LibraryFile",
    "LibraryInfo",
    "RNNReserve",
    "Stream",
}

NAMED = {f"ct.{name}": getattr(ct, name) for name in ct.__all__ if not inspect.ismodule(getattr(ct, name))}
NAMED |= {f"testing.{name}": getattr(testing, name) for name in testing.__all__}

FUNCTIONS = {name: value for name, value in NAMED.items() if inspect.isfunction(value)}
FUNCTIONS |= {
    f"ct.RNN.{name}": value
    for name, value in vars(ct.RNN).items()
    if inspect.isfunction(value) and not name.startswith("_") and len(inspect.signature(value).parameters) > 1
}
COMPUTING = {
    name: value
    for name, value in FUNCTIONS.items()
    if value.__module__.startswith("cudnn_ct.ops.") and not name.startswith("ct.RNN.")
}
COMPUTING |= {
    f"ct.RNN.{name}": getattr(ct.RNN, name) for name in ("forward", "backward_data", "backward_weights")
}
del COMPUTING["ct.batch_norm_overflow_detected"]


def sections(thing: Any) -> dict[str, str]:
    """Return the sections of a docstring by their titles."""
    return dict(SECTIONS.findall(inspect.getdoc(thing) or ""))


def described(text: str) -> list[str]:
    """Return the names that a section of parameters describes."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return [name.strip() for line in lines for name in line.partition(" : ")[0].split(",")]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_docstring_has_a_sentence_and_an_example(name: str) -> None:
    thing = NAMED[name]
    text = (type(thing) if name in ("ct.config", "ct.raw") else thing).__doc__ or ""
    assert re.match(r"\S.*\.(\n|\Z)", text)
    if inspect.isclass(thing) and issubclass(thing, Exception | tuple):
        assert len(text.split()) > 4  # errors and results have the examples of the functions that make them
        return
    owner = Descriptor if inspect.isclass(thing) and issubclass(thing, Descriptor) else thing
    assert name[3:] in RETURNED or re.search(r">>>|As of :func:`", sections(owner).get("Examples", ""))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstring_describes_parameters_results_and_errors(name: str) -> None:
    function, found = FUNCTIONS[name], sections(FUNCTIONS[name])
    signature = inspect.signature(function)
    taken = set(signature.parameters) - {"self"}
    assert sorted(described(found.get("Parameters", ""))) == sorted(taken)
    assert signature.return_annotation in ("None", None) or {"Returns", "Yields"} & set(found)
    assert "Raises" in found or not taken


def test_docstring_has_the_error_of_beta_only_with_that_parameter() -> None:
    named = {name for name, one in NAMED.items() if "``beta`` is given" in (one.__doc__ or "")}
    assert named == {name for name, one in FUNCTIONS.items() if "beta" in inspect.signature(one).parameters}


@pytest.mark.parametrize("name", sorted(COMPUTING))
def test_docstring_names_functions_of_cudnn_and_reports_determinism(name: str) -> None:
    notes = " ".join(sections(COMPUTING[name])["Notes"].split())
    assert re.search(r"``cudnn\w+", notes) or name == "ct.conv_algorithms"
    assert "from run to run" in notes


@pytest.mark.parametrize("name", sorted(dnn.__all__))
def test_dnn_docstring_is_one_line_with_a_link(name: str) -> None:
    text = inspect.getdoc(getattr(dnn, name)) or ""
    link = re.fullmatch(r".+\. See :(?:func|class|meth):`cudnn_ct\.([\w.]+)`\.", text)
    assert link, text
    assert attrgetter(link[1])(ct)


# --- examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", all_examples(device=False), ids=lambda test: test.name)
def test_example_runs_without_a_device(test: doctest.DocTest) -> None:
    run(test, names=test.globs)


def test_only_plain_convolutions_describe_legacy_algorithms() -> None:
    named = {name for name in ct.__all__ if '"winograd"' in (getattr(ct, name).__doc__ or "")}
    plain = {"conv", "conv_backward_data", "conv_backward_filter", "conv_plan", "conv_transpose"}
    assert named == {*plain, "conv_bias_activation", "conv_bias_activation_plan"}
