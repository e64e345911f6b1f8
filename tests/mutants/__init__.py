"""Faults planted into copies of the package, to see whether the tests notice them."""
