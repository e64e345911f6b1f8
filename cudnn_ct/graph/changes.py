"""Changes of a rejected graph, of one property each, that cuDNN has engines for."""

# cuDNN's lines name the check that failed first. To find what is supported, the heuristics are queried again
# for graphs with another dtype, layout or size. Some engines that they offer do not compile, such as those
# for attention in half precision with the scales of float8, so one is compiled for each change.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from ..context import Context
from ..errors import CudnnError
from ..shapes.specs import LAYOUTS, TensorSpec, packed_strides
from .engines import heuristic_configs, heuristic_modes, offer_of
from .native import operation_graph
from .offline import Planner, describe_device
from .operations import Graph, Node, Tensor, mapped_graph, tensors_of_graph
from .plan import attempt

FLOATS = ("float16", "bfloat16", "float32")
COMPUTE = ("comp_type", "math_prec")  # attributes of the parameters of operations
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
MAX_WIDTH = 128  # of a head, that all engines for attention support
MULTIPLE = 8  # lengths that tensor cores need
TRIED = 2  # engines that are compiled for a change


class _Change(NamedTuple):
    """A changed graph, and the change in words."""

    words: str
    graph: Graph
    capability: tuple[int, int] | None = None


def supported_changes(
    graph: Graph, context: Context | Planner, names: Mapping[int, str] | None = None
) -> list[str]:
    """Return the changes of one property with which cuDNN supports a graph that it rejects.

    Each is a sentence such as ``"the compute type must be float32 (is float16)"``. Changes of the graph come
    first. Other GPUs are named only if no change of the graph helps. ``names`` has the names of tensors by
    uid, which are those of their roles by default.
    """
    called = {**names_of(graph), **(names or {})}
    found = [change.words for change in _changes(graph, called) if _supported(change.graph, context)]
    return list(dict.fromkeys(found)) or list(_other_gpus(graph, context))


def _supported(graph: Graph, context: Context | Planner) -> bool:
    def supported() -> bool:
        native = operation_graph(graph, context)
        modes = [mode for mode in heuristic_modes(graph, context) if mode != "b"]  # which adds no engine
        offered = islice(heuristic_configs(native, context, modes, TRIED), TRIED)
        return any(offer_of(native, offer.engine, context) for offer in offered)

    return attempt(supported) is True


def _changes(graph: Graph, names: Mapping[int, str]) -> Iterator[_Change]:
    made = {repr(graph)}
    for change in (*_computed(graph), *_stored(graph, names), *_laid_out(graph), *_sized(graph)):
        if repr(change.graph) not in made:
            made.add(repr(change.graph))
            yield change


# --- changes -----------------------------------------------------------------------------------------------


def _computed(graph: Graph) -> Iterator[_Change]:
    """Yield changes of the compute type."""
    used = sorted(
        {str(one.attributes[name]) for one in graph.nodes for name in COMPUTE if name in one.attributes}
    )
    for dtype in ("float32", "int32"):

        def computed(one: Node, dtype: str = dtype) -> Node:
            changed = {name: dtype for name in COMPUTE if name in one.attributes}
            return one._replace(attributes={**one.attributes, **changed})

        yield _Change(
            f"the compute type must be {dtype} (is {_listed(used) if used else 'float32'})",
            mapped_graph(graph, node=computed),
        )


def _stored(graph: Graph, names: Mapping[int, str]) -> Iterator[_Change]:
    """Yield changes of dtypes: of all operands that have one dtype, of all operands, and of one operand."""
    # The latter becomes float32, or has the dtype of the first operand.
    floats = [one for one in graph.operands if one.spec.dtype.startswith(("float", "bfloat"))]
    dtypes = sorted({one.spec.dtype for one in floats})
    for old in [(dtype,) for dtype in dtypes] + ([tuple(dtypes)] if len(dtypes) > 1 else []):
        those = [names[one.uid] for one in graph.operands if one.spec.dtype in old]
        have = f"{'is' if len(those) == 1 else 'are'} {_listed(old)}"

        def stored(one: Tensor, old: tuple[str, ...] = old) -> bool:
            stays = one.value is not None or (one.virtual and old == ("float32",))
            return one.spec.dtype in old and not stays

        for new in FLOATS:
            yield _Change(f"{_listed(those)} must be {new} ({have})", _retyped(graph, new, stored))
    for changed in floats[1:]:
        same_memory = partial(_has_memory_of, changed.uid)
        for new in dict.fromkeys((floats[0].spec.dtype, "float32")):
            words = f"{names[changed.uid]} must be {new} (is {changed.spec.dtype})"
            yield _Change(words, _retyped(graph, new, same_memory))


def _has_memory_of(uid: int, one: Tensor) -> bool:
    return uid in (one.uid, one.same_memory_as)


def _retyped(graph: Graph, dtype: str, changes: Callable[[Tensor], bool]) -> Graph:
    """Replace the dtype of the tensors for which ``changes`` is true."""

    def retyped(one: Tensor) -> Tensor:
        return one._replace(spec=one.spec._replace(dtype=dtype)) if changes(one) else one

    return mapped_graph(graph, tensor=retyped)


def _laid_out(graph: Graph) -> Iterator[_Change]:
    """Yield changes of the layout of all tensors."""
    images = not any(one.row.startswith(("sdpa", "matmul")) for one in graph.nodes)
    for layout in LAYOUTS if images else LAYOUTS[:1]:

        def packed(one: Tensor, layout: Any = layout) -> Tensor:
            strides = packed_strides(one.spec.shape, layout)
            return one._replace(spec=one.spec._replace(strides=strides))

        name = layout.upper() if images else "contiguous"
        yield _Change(f"the layout of all tensors must be {name}", mapped_graph(graph, tensor=packed))


def _sized(graph: Graph) -> Iterator[_Change]:
    """Yield changes of the width of heads, or of the number of channels, to supported ones."""
    for one in graph.nodes:
        named = {name: value for name, value in one.attributes.items() if isinstance(value, Tensor)}
        if one.row.startswith("sdpa"):
            widths = [named[name].spec.shape[-1] for name in ("qdesc", "vdesc")]
            heads = {value.uid for name, value in named.items() if name in _HEADS}
            for limit in (10**9, 256, MAX_WIDTH, 64):
                new = [min(_rounded(width), limit) for width in widths]
                words = (
                    f"the head width must be {_numbers(new)} or another supported one (is {_numbers(widths)})"
                )
                changed = dict(zip(widths, new, strict=True))
                yield _Change(words, _resized(graph, changed, dict.fromkeys(heads, (-1,)), ()))
        elif one.row.startswith("conv_"):
            weight = next(named[name] for name in ("w", "dw") if name in named)
            counts = weight.spec.shape[:2]
            new = [_rounded(count) for count in counts]
            words = f"channels must be multiples of {MULTIPLE} (are {_numbers([counts[1], counts[0]])})"
            yield _Change(
                words, _resized(graph, dict(zip(counts, new, strict=True)), {weight.uid: (0, 1)}, (1,))
            )
        elif one.row.startswith("norm"):
            count = named["xdesc"].spec.shape[1]
            words = f"channels must be a multiple of {MULTIPLE} (are {count})"
            yield _Change(words, _resized(graph, {count: _rounded(count)}, {}, (1,)))
        elif one.row == "matmul":
            sizes = {*named["adesc"].spec.shape[-2:], *named["bdesc"].spec.shape[-2:]}
            words = f"rows and columns must be multiples of {MULTIPLE} (are {_numbers(sorted(sizes))})"
            yield _Change(words, _resized(graph, {size: _rounded(size) for size in sizes}, {}, (-2, -1)))


_HEADS = ("qdesc", "kdesc", "vdesc", "odesc", "doddesc", "dqdesc", "dkdesc", "dvdesc")


def _rounded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


def _numbers(values: Any) -> str:
    return " and ".join(str(value) for value in dict.fromkeys(values))


def _resized(
    graph: Graph, lengths: dict[int, int], axes: dict[int, tuple[int, ...]], others: tuple[int, ...]
) -> Graph:
    """Replace lengths along the ``axes`` of tensors by uid, and along ``others`` of all other tensors."""

    def resized(one: Tensor) -> Tensor:
        shape = list(one.spec.shape)
        for axis in axes.get(one.uid, others):
            shape[axis] = lengths.get(shape[axis], shape[axis])
        if tuple(shape) == one.spec.shape:
            return one
        strides = packed_strides(tuple(shape), one.spec.layout or "nchw")
        return one._replace(spec=TensorSpec(tuple(shape), strides, one.spec.dtype))

    return mapped_graph(graph, tensor=resized)


# --- other GPUs --------------------------------------------------------------------------------------------


def _other_gpus(graph: Graph, context: Context | Planner) -> Iterator[str]:
    """Yield the compute capabilities that cuDNN has engines for: this GPU, with another one."""
    try:
        described = context.description if isinstance(context, Planner) else describe_device(context)
        here = Planner(described) if isinstance(described, str) else context
        assert isinstance(here, Planner)
    except (CudnnError, ValueError):
        return
    current = here.description.get("deviceVer", 0)
    for major, minor in CAPABILITIES:
        version = major * 100 + minor * 10
        if version > current and _supported(graph, Planner({**here.description, "deviceVer": version})):
            have = f"{current // 100}.{current % 100 // 10}"
            yield f"the GPU must have compute capability {major}.{minor} (has {have})"
            return


# --- graphs ------------------------------------------------------------------------------------------------


def names_of(graph: Graph) -> dict[int, str]:
    """Return a name for each tensor of a graph: that of the first attribute that it is the value of."""
    names: dict[int, str] = {}
    for one in graph.nodes:
        for attribute, value in one.attributes.items():
            if isinstance(value, Tensor):
                names.setdefault(value.uid, name_of(attribute))
    return {uid: names.get(uid, f"tensor {uid}") for uid in tensors_of_graph(graph)}


def name_of(attribute: str) -> str:
    """Return the name of a tensor from the name of its attribute: ``"adesc"`` is ``"a"``.

    >>> name_of("inv_variance_desc"), name_of("doddesc"), name_of("w")
    ('inv_variance', 'do', 'w')
    """
    if attribute == "doddesc":
        return "do"
    return attribute.removesuffix("desc").removesuffix("_") or attribute


def _listed(words: Sequence[str]) -> str:
    """Return words with commas and "and"."""
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} and {last}" if first else last
