"""Fragments: pieces of the model, each with a chain of commits (NumPy, no torch)."""
