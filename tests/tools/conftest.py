"""What tests of commands start with."""

from __future__ import annotations

from process.places import life, place

__all__ = ["life", "place"]
