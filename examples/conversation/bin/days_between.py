#!/usr/bin/env python3
"""A tool: how many days lie between two dates. The arguments come as JSON on stdin."""

from __future__ import annotations

import datetime
import json
import sys

asked = json.load(sys.stdin)
first, second = (datetime.date.fromisoformat(asked[name]) for name in ("first", "second"))
json.dump({"days": (second - first).days}, sys.stdout)
