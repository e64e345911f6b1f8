"""What the docstring of a public name must have, and that the examples of operations hold of the reference.

An example of what needs a device is what a person types. It runs on the fakes, on a GPU, and here with the
reference in the place of the operations.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, errors, reference, testing
from cudnn_ct.cuda.stream import Stream
from cudnn_ct.descriptors import Descriptor
from cudnn_ct.ops.conv.algorithms import Algorithms
from cudnn_ct.ops.conv.plan import ConvPlan
from tests.docstrings import OnReference, all_examples, run

# Methods that run the network: what is said of operations holds for them.
RUNS = ("forward", "backward_data", "backward_weights")

# What is public by being what a public name gives.
GIVEN = {"Algorithms": Algorithms, "ConvPlan": ConvPlan, "Stream": Stream}

# Functions of shapes alone: nothing is computed, so there is nothing of cuDNN to tell.
OF_SHAPES = {"conv_output_shape", "conv_transpose_output_shape", "pool_output_shape"}

SECTIONS = re.compile(r"^([A-Z][a-z]+)\n-{4,}\n(.*?)(?=^[A-Z][a-z]+\n-{4,}\n|\Z)", re.MULTILINE | re.DOTALL)


def named() -> dict[str, Any]:
    """Every public object but modules, by the name that people use."""
    found = {
        f"ct.{name}": getattr(ct, name) for name in ct.__all__ if not inspect.ismodule(getattr(ct, name))
    }
    found |= {f"dnn.{name}": getattr(dnn, name) for name in dnn.__all__}
    found |= {f"reference.{name}": getattr(reference, name) for name in reference.__all__}
    found |= {f"testing.{name}": getattr(testing, name) for name in testing.__all__}
    return found | GIVEN


def is_operation(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith("cudnn_ct.ops.")


def operations() -> dict[str, Any]:
    """What computes on a device."""
    functions = {name: getattr(ct, name) for name in ct.__all__ if name not in OF_SHAPES}
    found = {name: function for name, function in functions.items() if is_operation(function)}
    return found | {f"RNN.{name}": getattr(ct.RNN, name) for name in RUNS}


def functions() -> dict[str, Any]:
    """The public functions whose docstrings have all sections, and the methods of RNN."""
    found = {name: value for name, value in named().items() if inspect.isfunction(value)}
    found = {name: value for name, value in found.items() if not name.startswith(("dnn.", "reference."))}
    return found | {f"ct.RNN.{name}": value for name, value in methods(ct.RNN)}


def methods(owner: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if (
            inspect.isfunction(value)
            and not name.startswith("_")
            and len(inspect.signature(value).parameters) > 1
        ):
            yield name, value


def sections(thing: Any) -> dict[str, str]:
    """The sections of a docstring, by their titles."""
    return dict(SECTIONS.findall(inspect.getdoc(thing) or ""))


def described(text: str) -> list[str]:
    """The names that a section of parameters describes, in its order."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return [name.strip() for line in lines for name in line.partition(" : ")[0].split(",")]


def taken(thing: Any) -> list[str]:
    """The names that a call takes."""
    return [name for name in inspect.signature(thing).parameters if name != "self"]


@pytest.mark.parametrize("name", sorted(named()))
def test_the_first_line_is_a_sentence(name: str) -> None:
    text = type(named()[name]).__doc__ if name in ("ct.config", "ct.raw") else named()[name].__doc__
    assert text, f"{name} has no docstring"
    assert text.splitlines()[0].endswith("."), name


@pytest.mark.parametrize("name", sorted(functions()))
def test_all_parameters_are_described_and_no_others(name: str) -> None:
    function = functions()[name]
    if taken(function):
        assert sorted(described(sections(function)["Parameters"])) == sorted(taken(function)), name


@pytest.mark.parametrize("name", sorted(functions()))
def test_a_function_says_what_it_gives_and_raises(name: str) -> None:
    function, found = functions()[name], sections(functions()[name])
    gives = inspect.signature(function).return_annotation not in ("None", None)
    assert not gives or {"Returns", "Yields"} & set(found), name
    assert "Raises" in found or not taken(function), name


@pytest.mark.parametrize("name", sorted(operations()))
def test_an_operation_names_functions_of_cudnn_and_tells_whether_it_is_deterministic(name: str) -> None:
    if name == "batch_norm_overflow_detected":  # it computes nothing
        return
    notes = " ".join(sections(operations()[name])["Notes"].split())
    assert re.search(r"``cudnn\w+", notes) or name == "conv_algorithms", name
    assert "from run to run" in notes, name


@pytest.mark.parametrize("name", sorted(dnn.__all__))
def test_dnn_docstring_is_one_line_with_a_link(name: str) -> None:
    text = inspect.getdoc(getattr(dnn, name)) or ""
    link = re.fullmatch(r".+\. See :(?:func|class|meth):`cudnn_ct\.([\w.]+)`\.", text)
    assert link, text
    assert attrgetter(link[1])(ct)


@pytest.mark.parametrize("name", sorted(named()))
def test_there_is_an_example_that_runs(name: str) -> None:
    thing = named()[name]
    if inspect.isclass(thing) and (issubclass(thing, (Exception, Warning)) or issubclass(thing, tuple)):
        return  # an error is raised, and a value is given, by something that has an example
    if inspect.isclass(thing) and issubclass(thing, Descriptor):
        thing = Descriptor
    if name.startswith(("dnn.", "reference.")):
        return  # tests/dnn_cases.py calls every name of dnn; examples of operations run on the reference
    if name in ("ct.RNNReserve", "ConvPlan", "Stream", "Algorithms"):
        return  # given by what has one: RNN.forward, conv_plan, use, conv_algorithms
    examples = sections(thing).get("Examples", "")
    assert ">>>" in examples or "As of :func:`" in examples, name


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_says_when_it_is_raised(name: str) -> None:
    assert len((getattr(errors, name).__doc__ or "").split()) > 4


ON_REFERENCE = [
    test for test in all_examples() if test.name.split(".")[-1] in reference.__all__ and ".ops." in test.name
]


def test_every_operation_with_a_reference_has_an_example() -> None:
    assert {test.name.split(".")[-1] for test in ON_REFERENCE} == set(reference.__all__) - OF_SHAPES


@pytest.mark.parametrize("test", ON_REFERENCE, ids=lambda test: test.name)
def test_the_example_of_an_operation_runs_on_the_reference(test: doctest.DocTest) -> None:
    run(test, OnReference())
