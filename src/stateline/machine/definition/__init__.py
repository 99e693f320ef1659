"""Machine files: reading and checking them. Pure."""
