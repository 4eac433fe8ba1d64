"""Observing a run: what a peer shows of itself, never with influence on what it does."""
