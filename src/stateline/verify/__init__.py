"""Check a store: chains, objects, anchors, findings."""
