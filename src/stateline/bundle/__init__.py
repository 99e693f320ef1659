"""Bytes of the format: canonical JSON, names, envelopes, objects and chunks. Pure."""
