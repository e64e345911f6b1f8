"""Candidates of a problem, their benchmark, and the tuned algorithms on disk."""
