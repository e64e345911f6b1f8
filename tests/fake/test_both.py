"""The tests of tests/both in this tier."""

from tests.both.tensors import *  # noqa: F403
