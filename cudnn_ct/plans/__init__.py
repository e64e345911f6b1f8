"""Plans: prepared computations of a problem, which run on given pointers. They name no operation."""
