"""Finds out what is wrong with a cuDNN installation, with the standard library alone."""
