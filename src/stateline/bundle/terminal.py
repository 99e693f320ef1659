"""Characters that act on a terminal instead of being shown. Pure.

Text that is printed or kept as a message comes from outside: programs, machine files, a state dir.
"""

from __future__ import annotations

HARMFUL = frozenset(
    [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF]
)
"""Code points of control characters, and of those that reorder, break or hide text; tab and newline included."""
HARMFUL_IN_LINES = HARMFUL - {0x09, 0x0A}
"""The same for text of several lines."""
