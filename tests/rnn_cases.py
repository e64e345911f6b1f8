"""Recurrent networks with operands, for tests of any tier."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cudnn_ct.dtypes import as_dtype
from cudnn_ct.shapes.rnn import RNN_BIASES, RNN_DIRECTIONS, RNN_INPUT_MODES, RNN_MODES, RNNSpec, rnn_spec
from cudnn_ct.shapes.rnn_params import rnn_parameters
from cudnn_ct.shapes.sequences import rnn_shapes


class RNNCase(NamedTuple):
    """A network, how much it is given, and a seed of the numbers."""

    spec: RNNSpec
    steps: int
    lengths: tuple[int, ...]
    states: bool
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``rnn``."""
        shapes = rnn_shapes(self.spec, (self.steps, len(self.lengths)), len(self.lengths))
        options: dict[str, Any] = {"lengths": self.lengths}
        if self.states:
            options["h0"] = self.random(shapes.h, 1)
            if shapes.c:
                options["c0"] = self.random(shapes.c, 2)
            if shapes.c and self.spec.clip:  # how cuDNN takes a first cell beyond the bounds was not seen
                low, high = self.spec.clip
                inside = np.clip(options["c0"].astype(np.float64), low + 0.05, high - 0.05)
                options["c0"] = inside.astype(options["c0"].dtype)
        return options

    def random(self, shape: tuple[int, ...], salt: int) -> np.ndarray:
        values = np.random.default_rng([self.seed, salt]).standard_normal(shape)
        return values.astype(as_dtype(self.spec.dtype).numpy)

    @property
    def x(self) -> np.ndarray:
        return self.random((self.steps, len(self.lengths), self.spec.input_size), 0)

    @property
    def weights(self) -> list[np.ndarray]:
        return [self.random(row.shape, 10 + i) for i, row in enumerate(rnn_parameters(self.spec))]

    @property
    def tame(self) -> list[np.ndarray]:
        """Weights so small that roundings grow little from step to step."""
        factor = min(0.5, self.spec.hidden_size**-0.5)
        return [(factor * w.astype(np.float64)).astype(w.dtype) for w in self.weights]


@st.composite
def rnn_specs(draw: st.DrawFn, *, torch: bool = False, dtype: str = "float64", most: int = 4) -> RNNSpec:
    """Draw a network, with ``torch=True`` one that torch has too."""
    mode = draw(st.sampled_from(RNN_MODES))
    hidden = draw(st.integers(1, most))
    input_mode = "linear" if torch else draw(st.sampled_from(RNN_INPUT_MODES))
    clip = None if mode != "lstm" or torch else draw(st.sampled_from([None, (-0.3, 0.4), (0.0, np.inf)]))
    return rnn_spec(
        mode,
        hidden if input_mode == "skip" else draw(st.integers(1, most)),
        hidden,
        draw(st.integers(1, 3)),
        direction=draw(st.sampled_from(RNN_DIRECTIONS)),
        input_mode=input_mode,
        bias=draw(st.sampled_from(("no_bias", "double_bias") if torch else sorted(RNN_BIASES))),
        projection_size=draw(st.integers(0, hidden - 1)) if mode == "lstm" else 0,
        dtype=dtype,
        clip=clip,
    )


@st.composite
def rnn_cases(draw: st.DrawFn, *, least: int = 0, **options: Any) -> RNNCase:
    """Draw a network and sequences of at least ``least`` steps."""
    steps = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(least, steps), min_size=1, max_size=3))
    return RNNCase(
        draw(rnn_specs(**options)), steps, tuple(lengths), draw(st.booleans()), draw(st.integers(0, 99))
    )
