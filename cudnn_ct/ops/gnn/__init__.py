"""Operations on graphs of nodes and edges: aggregation and attention."""
