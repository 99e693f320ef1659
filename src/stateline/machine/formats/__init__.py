"""Readers of machine files."""
