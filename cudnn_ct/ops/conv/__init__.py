"""Convolutions: problem, legacy and graph implementations, candidates, and the public functions."""
