"""Shared parts of all comparisons with PyTorch.

`shards` selects rows. `command` has the command line and the run. `operands` has the operands of calls.
`timing` runs contenders alternately. `results` stores records. `figures` computes means, and `text` formats
them. Each benchmark has its own rows, contenders and targets.
"""
