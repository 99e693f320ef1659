"""Derive and refine a context."""
