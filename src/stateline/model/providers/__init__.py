"""Models of providers behind their official SDKs."""
