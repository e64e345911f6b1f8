"""Fixtures of the tests of `cudnn_ct.jax`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """Let JAX have 64-bit types during a test."""
    jax = pytest.importorskip("jax")
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
