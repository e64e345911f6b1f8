"""Golden files: how calls are computed, so that a change of structure shows all that it changes.

python -m tests.golden            # compare; the exit status is 1 for a difference
python -m tests.golden --write    # write the present results of the same calls
python -m tests.golden --draw     # draw other calls first

``calls.txt`` has calls drawn from the table of operations, one literal in each line. ``answers.txt`` has
for each of them the native graphs, the candidates in their order on the fakes, rejected ones with reasons,
and what `describe` returns; and the same for random graphs of ``ct.Graph``.
"""
