"""The past of a scope: walk, log, verify."""
