"""Specs of tensors and rules of shapes, as values: pure Python without a library or a device."""
