"""Tests that are made from facts.json: each row has an example, and a near miss of each of its conditions."""
