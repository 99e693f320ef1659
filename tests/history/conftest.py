"""Fixtures for this directory."""

from __future__ import annotations

from sample_stores import chain, check, open_store, place, publish, store

__all__ = ["chain", "check", "open_store", "place", "publish", "store"]
