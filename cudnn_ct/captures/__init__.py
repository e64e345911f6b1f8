"""Whole functions as CUDA graphs."""
