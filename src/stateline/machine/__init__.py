"""What may happen: the spec of a machine and the one function that decides. Pure."""
