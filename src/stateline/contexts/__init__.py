"""Derive, refine and restore contexts: the prompts and settings that a model is called with."""
