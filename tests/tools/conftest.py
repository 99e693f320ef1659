"""Fixtures of tests that run commands."""

from __future__ import annotations

from process.places import life, place

__all__ = ["life", "place"]
