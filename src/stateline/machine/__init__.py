"""Machines: the spec, its file formats and checks, and the function that decides each step of a run. Pure."""
