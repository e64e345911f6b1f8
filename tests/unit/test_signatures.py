"""`reference` has the names of `ops`, with the same parameters except those that concern only a device."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import descriptors, dnn, reference, testing
from cudnn_ct.graph import candidates, offline
from cudnn_ct.ops.conv import graph

ON_A_DEVICE = {"algo", "precision", "deterministic", "workspace_limit", "strict", "stream"}

# Operations, and the public functions of shapes.
OPERATIONS = ("cudnn_ct.ops.", "cudnn_ct.shapes.")

# Parameters of such names that change the result: a softmax or its logarithm.
OF_MATHEMATICS = {("softmax", "algo"), ("softmax_backward", "algo")}

# The state of random numbers on a device, and the mask of dropout that a reference takes instead.
RANDOM = {"seed", "offset", "kept"}

# Operations without a mathematical definition: they select, prepare or query, or draw random numbers.
WITHOUT_REFERENCE = {
    *("batch_norm_overflow_detected", "conv_algorithms", "conv_bias_activation_plan", "conv_plan"),
    *("dropout", "dropout_backward"),
}


# The modules on the API pages.
MODULES = (ct, dnn, reference, testing, descriptors, candidates, offline, graph)


def public(module: ModuleType) -> set[str]:
    return set(getattr(module, "__all__", ("Descriptor", "Setter")))


def is_operation(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith(OPERATIONS)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults, in order."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_reference_has_every_operation_and_no_other() -> None:
    functions = {name for name in public(ct) if is_operation(getattr(ct, name))}
    assert public(reference) == functions - WITHOUT_REFERENCE


@pytest.mark.parametrize("name", sorted(public(reference)))
def test_reference_has_the_signature_of_its_operation(name: str) -> None:
    ours = parameters(getattr(ct, name))
    mathematical = [row for row in ours if row[0] not in ON_A_DEVICE or (name, row[0]) in OF_MATHEMATICS]
    drawn = [row for row in mathematical if row[0] not in RANDOM]
    assert [row for row in parameters(getattr(reference, name)) if row[0] not in RANDOM] == drawn


def annotations(value: Any) -> list[str]:
    """Return the annotations of a function, or of all methods and properties of a class or an object."""
    kind = value if inspect.isclass(value) else type(value)
    own = [vars(base) for base in kind.__mro__ if base.__module__.startswith("cudnn_ct.")]
    members = [one for row in own for name, one in row.items() if not re.match("_[^_]", name)]
    functions = [value, *(getattr(one, "fget", getattr(one, "__func__", one)) for one in members)]
    return [str(one) for f in functions if inspect.isfunction(f) for one in f.__annotations__.values()]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_signatures_have_types_other_than_any(module: ModuleType) -> None:
    names = public(module) - {"raw"}  # whose attributes are functions, enums and types
    found = {name: " ".join(annotations(getattr(module, name))) for name in names}
    # NumPy writes an array of any dtype like this.
    assert not [n for n, types in found.items() if "Any" in re.sub(r"(NDArray|np.dtype)\[Any]", "", types)]


@pytest.mark.parametrize("name", sorted(public(reference)))
def test_reference_docstring_names_its_operation(name: str) -> None:
    if not name.endswith("_output_shape"):  # the same function as in the package
        text = inspect.getdoc(getattr(reference, name)) or ""
        assert text.splitlines()[0].endswith(f"See :func:`cudnn_ct.{name}`.")
