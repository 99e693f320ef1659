"""``python -m stateline``."""

from __future__ import annotations

from stateline.cli.main import main

main()
