"""Authenticated connections between peers, and calls over them. Start with transport.py."""
