"""Random sequences of blocks: values and gradients are those of torch, and so are the names at the end."""

from __future__ import annotations

import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import cudnn_ct.torch as ctt
from cudnn_ct.cuda import stream as streams
from cudnn_ct.torch import blocks, faster, serving
from cudnn_ct.torch.rules import RULES
from tests.fake.cudnn import FakeCudnn

CASES = 12
GROUPS = sorted(blocks.GROUPS)
OPERANDS = (*map(torch.randn, [(2, 4, 8, 8), (1, 3, 4, 8), (2, 2, 6, 6)]), torch.randn(2, 4, 8, 8).mT)
CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "softmax": lambda call, x: call(x, 1),
    "log_softmax": lambda call, x: call(x, dim=1),
    "all": lambda call, x: call(x, -1),
    "method": lambda call, x: call(x, 1),
    "layer_norm": lambda call, x: call(x, x.shape[-1:], torch.ones(x.shape[-1]), torch.ones(x.shape[-1])),
    "rms_norm": lambda call, x: call(x, x.shape[-1:], torch.ones(x.shape[-1]), 1e-5),
    "conv2d": lambda call, x: call(x, torch.ones(2, x.shape[1], 3, 3), None, 1, 1),
    "max_pool2d": lambda call, x: call(x, 2),
    "scaled_dot_product_attention": lambda call, x: call(x, x, x),
}
OWN = {"method": Tensor.softmax, "all": torch.softmax}
OWN |= {name: getattr(F, name) for name in CALLS if hasattr(F, name)}


@pytest.fixture(autouse=True)
def _groups_rest_soon(door: FakeCudnn, direct: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    monkeypatch.setattr(serving, "current_stream", streams.default_stream)
    monkeypatch.setattr(serving._replaced, "_rebound", -(10**6))
    for place, name, value in (
        *((faster, "STREAK", 3), (faster, "BETWEEN", 4), (serving, "TIMED", 4), (blocks, "LONG", 7)),
        (torch.backends.cudnn, "benchmark", True),
    ):
        monkeypatch.setattr(place, name, value)
    before = names()
    yield
    assert not serving._replaced._blocks
    assert names() == before


def names() -> list[Any]:
    """Return what the names of torch's functions are bound to."""
    return [getattr(owner, f.__name__, None) for owner in (F, torch, torch._VF, Tensor) for f in RULES]


class Walk:
    """Random steps in random blocks, with modules that imported functions before or within a block."""

    def __init__(self, draw: random.Random, objects: list[ctt.enable], modules: list[Any]) -> None:
        self.draw, self.objects, self.modules = draw, objects, modules

    def run(self, depth: int, steps: int) -> None:
        weights = (9, 6 * (depth < 4), 1, 1, 1, 2 * (not depth))
        actions = (self.check, self.enter, self.overlap, self.suspend, self.set, self.threads)
        for _ in range(steps):
            self.draw.choices(actions, weights)[0](depth)

    def call(self, name: str, x: Tensor) -> Tensor:
        if name == "softmax" and self.modules and self.draw.random() < 0.5:
            return CALLS[name](self.draw.choice(self.modules).probabilities, x)
        places = {"method": Tensor.softmax, "all": torch.softmax}
        return CALLS[name](places[name] if name in places else getattr(F, name), x)

    def check(self, depth: int) -> None:
        name, x, records = self.draw.choice([*CALLS]), self.draw.choice(OPERANDS), self.draw.random() < 0.3
        given = [x.detach().clone().requires_grad_(records) for _ in range(2)]
        with torch.set_grad_enabled(records):
            found = self.call(name, given[0])
            with ctt.enable(skip=GROUPS):
                expected = CALLS[name](OWN[name], given[1])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            if records:
                pairs = zip((found, expected), given, strict=True)
                own, others = [torch.autograd.grad(y.square().sum(), one)[0] for y, one in pairs]
                torch.testing.assert_close(own, others, rtol=1e-3, atol=1e-3)

    def enter(self, depth: int) -> None:
        try:
            with torch.set_grad_enabled(self.draw.random() < 0.5), self.draw.choice(self.objects):
                if self.draw.random() < 0.1:
                    self.add_module()
                self.run(depth + 1, self.draw.randint(1, 5))
                if self.draw.random() < 0.1:
                    raise KeyError
        except KeyError:
            pass

    def add_module(self) -> None:
        module: Any = types.ModuleType(f"drawn_{self.draw.random()}")
        exec("from torch.nn.functional import softmax as probabilities", vars(module))
        sys.modules[module.__name__] = module
        self.modules.append(module)

    def overlap(self, depth: int) -> None:
        """Two blocks end in any order."""
        entered = self.draw.choices(self.objects, k=2)
        for one in entered:
            one.__enter__()
        self.run(depth + 2, 2)
        self.draw.shuffle(entered)
        for one in entered:
            one.__exit__(None, None, None)
            self.check(depth)

    def suspend(self, depth: int) -> None:
        """Other calls run between the steps of a generator, which may be dropped."""

        @self.draw.choice(self.objects)
        def steps() -> Iterator[None]:
            for _ in range(3):
                self.check(depth)
                yield

        suspended = steps()
        next(suspended)
        self.check(depth)
        if self.draw.random() < 0.5:
            list(suspended)

    def set(self, depth: int) -> None:
        torch.backends.cudnn.benchmark = self.draw.random() < 0.7

    def threads(self, depth: int) -> None:
        errors: list[BaseException] = []

        def run(walk: Walk) -> None:
            try:
                with np.errstate(invalid="ignore"):  # as the fixture of the fakes
                    walk.run(1, 6)
            except BaseException as error:
                errors.append(error)

        walks = [Walk(random.Random(self.draw.random()), self.objects, [*self.modules]) for _ in range(2)]
        threads = [threading.Thread(target=run, args=(walk,)) for walk in walks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors, errors


def test_blocks_in_any_order_and_thread_compute_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    monkeypatch.setattr(serving, "torch_is_faster", lambda ours, *_: (ours(), draw.random() < 0.8)[1])
    for _ in range(CASES):
        skips = [draw.sample(GROUPS, draw.choice((0, 0, 1, 3))) for _ in range(draw.randint(1, 3))]
        objects = [ctt.enable(skip=skip, rebind=draw.random() < 0.85) for skip in skips]
        walk = Walk(draw, objects, [])
        try:
            walk.run(0, draw.randint(3, 15))
            assert all(one.probabilities is OWN["softmax"] for one in walk.modules)
        finally:
            for one in walk.modules:
                sys.modules.pop(one.__name__, None)
