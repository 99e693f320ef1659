"""The engine: load a run, decide, perform effects, save."""
