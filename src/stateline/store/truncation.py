"""Was a file of JSON cut short, or altered? Loaded only where one is damaged."""

from __future__ import annotations

import json
from typing import Literal


def torn(data: bytes) -> Literal["truncated", "altered"]:
    """What became of bytes that are not those they should be: ``truncated`` if their end is missing."""
    if data.rstrip().endswith(b"}"):
        return "altered"
    try:
        # A whole value with something behind it has grown.
        json.JSONDecoder(strict=False).raw_decode(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return "truncated"
    return "altered"
