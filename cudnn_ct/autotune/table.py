"""Tables of the candidates of a problem."""

from __future__ import annotations

from ..plans.base import Candidate, Problem


class Algorithms(tuple[Candidate, ...]):
    """The candidates of a problem: usable ones first, fastest first; printed as a table.

    Returned by :func:`conv_algorithms` and :meth:`RNN.algorithms`, not constructed by users. Each row can be
    passed as ``algo=`` to the operation that it was made for.
    """

    problem: Problem

    def __new__(cls, problem: Problem, rows: list[Candidate]) -> Algorithms:
        ordered = sorted(rows, key=lambda row: row.rank)
        table = super().__new__(cls, (row._replace(problem=problem) for row in ordered))
        table.problem = problem
        return table

    def __str__(self) -> str:
        lines = [str(self.problem), f"{'us':>9}  {'workspace':>13}  algorithm"]
        for row in self:
            time = "" if row.time_ms is None else f"{row.time_ms * 1000:.1f}"
            facts = f"{row.math}{'' if row.deterministic else ', not deterministic'}"
            copies = "".join(f", {operand} copied to {layout}" for operand, layout in row.relayout)
            why = f": {row.rejected.splitlines()[0]}" if row.rejected else ""
            name = f"{row.backend} {row.algorithm} ({facts}{copies})"
            lines.append(f"{time or '-':>9}  {row.workspace:>13,}  {name}{why}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        usable = sum(not row.rejected for row in self)
        return f"<{usable} algorithms, and {len(self) - usable} rejected, for {self.problem}>"
