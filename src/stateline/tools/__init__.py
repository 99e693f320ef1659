"""Tools of agents: the manifest that describes them, and the program that runs one call."""
