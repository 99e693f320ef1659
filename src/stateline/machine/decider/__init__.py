"""Decide the next step of a run. Pure."""
