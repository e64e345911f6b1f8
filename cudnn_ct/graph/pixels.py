"""Arrays of any shape as images for elementwise graphs: engines vectorise along the channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..dtypes import DTYPES
from ..plans.axes import sliced
from ..plans.base import Plan
from ..plans.elementwise import duplicate_plan
from ..plans.program import Program, Step, chained
from ..shapes.specs import TensorSpec

# Elements of a pixel. With 51 million elements in one pixel, engines need a grid that is too large.
CHANNELS = 1024


def pixels(count: int, channels: int, dtype: str) -> TensorSpec:
    """Return the spec of ``count`` contiguous pixels with ``channels`` elements each."""
    return TensorSpec.packed((count, channels, 1, 1), dtype, "nhwc")


def in_pixels(make: Callable[..., Plan], *specs: TensorSpec) -> Plan:
    """Return a plan for contiguous arrays, the result last; ``make`` returns a plan for images of pixels."""
    # A remainder of fewer elements than a pixel has is a call of its own. No engine supports a single
    # element, so a remainder of one joins the last pixel, and an array of one is computed as two.
    if specs[0].size == 1:
        return _from_pairs(make(*(pixels(1, 2, spec.dtype) for spec in specs)), specs)
    whole, rest = divmod(specs[0].size, CHANNELS)
    if rest == 1 and whole:
        whole, rest = whole - 1, rest + CHANNELS
    images = [(0, whole, CHANNELS)] * bool(whole) + [(whole * CHANNELS, 1, rest)] * bool(rest)
    pieces = []
    for start, count, channels in images:
        plan = make(*(pixels(count, channels, spec.dtype) for spec in specs))
        pieces.append((plan, tuple(start * DTYPES[spec.dtype].itemsize for spec in specs)))
    return pieces[0][0] if len(pieces) == 1 else sliced(pieces)


def _from_pairs(plan: Plan, specs: Sequence[TensorSpec]) -> Program:
    """Return a plan for single elements from that for pairs, of which the second elements are not used."""
    count, alone = len(specs), [duplicate_plan(TensorSpec.packed((1,), spec.dtype)) for spec in specs]
    steps = [Step(alone[place], (place, count + place)) for place in range(count - 1)]
    steps += [Step(plan, tuple(range(count, 2 * count))), Step(alone[-1], (2 * count - 1, count - 1))]
    return chained([TensorSpec.packed((2,), spec.dtype) for spec in specs], steps)
