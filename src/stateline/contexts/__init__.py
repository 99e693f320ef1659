"""Derive, refine and restore contexts."""
