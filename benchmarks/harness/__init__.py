"""The parts that all comparisons with PyTorch share.

`shards` selects rows, `command` is the command line and the run, `operands` has the operands of calls,
`timing` runs contenders alternately, `results` stores records, `figures` computes means and `text` formats
them. Each benchmark has its own rows, contenders and bars.
"""
