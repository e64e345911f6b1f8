"""Plans: what a run is once all that depends on the problem is made. They name no operation."""
