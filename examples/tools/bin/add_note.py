#!/usr/bin/env python3
"""Arguments: {"title": text, "text": text}. Result: a sentence.

It changes something, so it is not repeatable. It remembers for which call it wrote a note, in the note's last line: the
same call again (after a crash, when a person has said that it may be tried again) finds that the work is done.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

arguments = json.load(sys.stdin)
key = os.environ.get("STATELINE_IDEMPOTENCY_KEY", "by hand")
mark = f"<!-- written for {key} -->\n"
# The schema in the manifest ensures that the title is not a path.
note = pathlib.Path(os.environ.get("NOTES_DIR", "notes")) / f"{arguments['title']}.md"
try:
    with note.open("x", encoding="utf-8") as file:
        file.write(f"{arguments['text']}\n{mark}")
except FileExistsError:
    if key == "by hand" or not note.read_text(encoding="utf-8").endswith(mark):
        sys.exit(f"there is already a note {arguments['title']}; choose another title")
except OSError as error:
    sys.exit(f"the note cannot be kept: {error.strerror}")
print(f"kept as {arguments['title']}")
