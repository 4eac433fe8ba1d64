"""Averaging: who leads a round, when it closes, and how contributions become one update (NumPy, no torch)."""
