"""Models behind the official SDKs."""
