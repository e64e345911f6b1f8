"""Variant packs that are made without the checks of descriptors, by the real cuDNN."""

from __future__ import annotations

import pytest

from cudnn_ct import _lib
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.plan import BackendDescriptor, VariantPack, VariantPacks

from .test_graph import in_child


@in_child
def test_a_failing_call_is_repeated_with_its_error() -> None:
    packs = VariantPacks(_lib.load(), [1, 2, 3])
    assert isinstance(packs.make((16, 32, 48), 64), VariantPack)
    _, write, finalize = packs._calls
    packs._calls = (lambda *_: 1, write, finalize)
    assert isinstance(packs.make((16, 32, 48), 64), BackendDescriptor)
    with pytest.raises(CudnnError, match="cudnnBackend"):
        VariantPacks(_lib.load(), []).make((), 64)
