"""Measurements of what Stateline costs: ``scripts/bench`` runs them, one module a subject."""
