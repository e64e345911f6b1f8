"""Graphs of operations as values, and the rules of their shapes and dtypes.

``problem`` has the values. ``kinds`` is the table of all kinds of operations; a rule returns the results of
an operation from its operands, or raises an error with the numbers.
"""
