#!/usr/bin/env python3
"""Arguments: {"query": text, "most": number}. Result: {"found": [{"note", "line", "text"}], "more": number}.

Reads and changes nothing, so it is repeatable.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

arguments = json.load(sys.stdin)
query, most = arguments["query"].casefold(), arguments.get("most", 10)
notes = pathlib.Path(os.environ.get("NOTES_DIR", "notes"))
if not notes.is_dir():
    sys.exit("there are no notes: NOTES_DIR names no directory")  # to stderr, with exit code 1: an error for the model
found = [
    {"note": path.stem, "line": number, "text": line.strip()}
    for path in sorted(notes.glob("*.md"))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if query in line.casefold()
]
json.dump({"found": found[:most], "more": len(found[most:])}, sys.stdout)
