"""Plan and apply repairs of a damaged store."""
