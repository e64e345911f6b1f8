"""Changes of a rejected graph, of one property each, that cuDNN has engines for."""

# cuDNN's lines name the check that failed first. To find what is supported, the heuristics are queried again
# for graphs with another dtype, layout or size. Some engines that they offer do not compile, such as those
# for attention in half precision with the scales of float8, so one is compiled for each change.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..context import Context
from ..errors import CudnnError
from ..shapes.specs import LAYOUTS, TensorSpec, packed_strides
from .backend import attempt
from .engines import heuristic_configs, heuristic_modes, offer_of
from .native import operation_graph
from .offline import Planner, describe_device
from .operations import Graph, Node, Tensor, mapped_graph, tensors_of_graph

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
    for change in (
        *_computed(graph),
        *_stored(graph, names),
        *_one_stored(graph, names),
        *_laid_out(graph),
        *_sized(graph),
    ):
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
    """Yield changes of the dtype of all operands that have one dtype, or of all operands."""
    dtypes = sorted({one.spec.dtype for one in graph.operands if _is_float(one)})
    for old in [(dtype,) for dtype in dtypes] + ([tuple(dtypes)] if len(dtypes) > 1 else []):
        for new in FLOATS:

            def stored(one: Tensor, old: tuple[str, ...] = old, new: str = new) -> Tensor:
                stays = one.value is not None or (one.virtual and old == ("float32",))
                changes = one.spec.dtype in old and not stays
                return one._replace(spec=one.spec._replace(dtype=new)) if changes else one

            those = [names[one.uid] for one in graph.operands if one.spec.dtype in old]
            words = f"{_listed(those)} must be {new} ({'is' if len(those) == 1 else 'are'} {_listed(old)})"
            yield _Change(words, mapped_graph(graph, tensor=stored))


def _one_stored(graph: Graph, names: Mapping[int, str]) -> Iterator[_Change]:
    """Yield changes of the dtype of one operand: to float32, or to that of the first operand."""
    floats = [one for one in graph.operands if _is_float(one)]
    for changed in floats[1:]:
        for new in dict.fromkeys((floats[0].spec.dtype, "float32")):

            def stored(one: Tensor, uid: int = changed.uid, new: str = new) -> Tensor:
                changes = uid in (one.uid, one.same_memory_as)
                return one._replace(spec=one.spec._replace(dtype=new)) if changes else one

            words = f"{names[changed.uid]} must be {new} (is {changed.spec.dtype})"
            yield _Change(words, mapped_graph(graph, tensor=stored))


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
                yield _Change(words, _resized(graph, dict(zip(widths, new, strict=True)), heads, (-1,)))
        elif one.row.startswith("conv_"):
            weight = next(named[name] for name in ("w", "dw") if name in named)
            counts = weight.spec.shape[:2]
            new = [_rounded(count) for count in counts]
            words = f"channels must be multiples of {MULTIPLE} (are {_numbers([counts[1], counts[0]])})"
            yield _Change(words, _with_channels(graph, weight.uid, dict(zip(counts, new, strict=True))))
        elif one.row.startswith("norm"):
            count = named["xdesc"].spec.shape[1]
            words = f"channels must be a multiple of {MULTIPLE} (are {count})"
            yield _Change(words, _resized(graph, {count: _rounded(count)}, set(), (1,)))
        elif one.row == "matmul":
            sizes = {*named["adesc"].spec.shape[-2:], *named["bdesc"].spec.shape[-2:]}
            words = f"rows and columns must be multiples of {MULTIPLE} (are {_numbers(sorted(sizes))})"
            yield _Change(words, _resized(graph, {size: _rounded(size) for size in sizes}, set(), (-2, -1)))


_HEADS = ("qdesc", "kdesc", "vdesc", "odesc", "doddesc", "dqdesc", "dkdesc", "dvdesc")


def _rounded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


def _numbers(values: Any) -> str:
    return " and ".join(str(value) for value in dict.fromkeys(values))


def _resized(graph: Graph, lengths: dict[int, int], uids: set[int], axes: tuple[int, ...]) -> Graph:
    """Replace lengths along some axes of the tensors of ``uids``, or of all tensors."""

    def resized(one: Tensor) -> Tensor:
        if uids and one.uid not in uids:
            return one
        shape = list(one.spec.shape)
        for axis in axes:
            shape[axis] = lengths.get(shape[axis], shape[axis])
        return _reshaped(one, tuple(shape))

    return mapped_graph(graph, tensor=resized)


def _with_channels(graph: Graph, weight: int, counts: dict[int, int]) -> Graph:
    """Replace the number of channels of a convolution, which are also lengths of its weight."""

    def resized(one: Tensor) -> Tensor:
        shape, last = list(one.spec.shape), 2 if one.uid == weight else 1
        for axis in range(0 if one.uid == weight else 1, max(last, 2)):
            shape[axis] = counts.get(shape[axis], shape[axis])
        return _reshaped(one, tuple(shape))

    return mapped_graph(graph, tensor=resized)


def _reshaped(one: Tensor, shape: tuple[int, ...]) -> Tensor:
    if shape == one.spec.shape:
        return one
    layout = one.spec.layout or "nchw"
    return one._replace(spec=TensorSpec(shape, packed_strides(shape, layout), one.spec.dtype))


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


def _is_float(tensor: Tensor) -> bool:
    return tensor.spec.dtype.startswith(("float", "bfloat"))
