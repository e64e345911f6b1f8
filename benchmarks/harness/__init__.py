"""What benchmarks beside PyTorch share, whatever they measure.

`shards` says which rows are measured, `command` how a run goes, `operands` what the calls work on, `timing`
who takes turns how, `results` what is kept, `figures` what it comes to, `text` how that reads. Rows,
contenders and bars belong to each benchmark.
"""
