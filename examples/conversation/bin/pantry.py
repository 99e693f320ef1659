#!/usr/bin/env python3
"""A tool: how much of an ingredient there is. Arguments come as JSON on stdin, the result goes as JSON to stdout."""

from __future__ import annotations

import json
import sys

GRAMS = {"flour": 2000, "salt": 500, "yeast": 14}

ingredient = json.load(sys.stdin)["ingredient"].lower()
if ingredient not in GRAMS:
    # What a failing tool says on stderr reaches the model as data.
    sys.exit(f"there is no {ingredient} in the pantry; there is: {', '.join(GRAMS)}")
json.dump({"ingredient": ingredient, "grams": GRAMS[ingredient]}, sys.stdout)
