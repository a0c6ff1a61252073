"""Kills at known moments of a run, and what became of it."""
