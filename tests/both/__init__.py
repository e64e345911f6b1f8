"""Tests that the fakes and the GPU tier run alike: each imports them into a test module of its own."""
