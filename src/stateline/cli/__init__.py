"""Flags to options, results to print."""
