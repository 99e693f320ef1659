"""Recognising licences: by phrases that only they use, and by the names that packages and headers give them."""

from __future__ import annotations

import re

# A text is the first of these all of whose phrases it holds; so the more special stand before the more general.
# Phrases are in lower case with single spaces and without punctuation, as `plain` makes them.
PHRASES: list[tuple[str, list[str]]] = [
    ("AGPL-3.0", ["gnu affero general public license", "version 3"]),
    ("LGPL-3.0", ["gnu lesser general public license", "version 3", "additional permissions"]),
    ("LGPL-2.1", ["gnu lesser general public license", "version 2 1"]),
    ("GPL-3.0", ["gnu general public license", "version 3 29 june 2007"]),
    ("GPL-2.0", ["gnu general public license", "version 2 june 1991"]),
    ("Apache-2.0", ["apache license", "version 2 0", "contributor"]),
    ("MPL-2.0", ["mozilla public license", "version 2 0"]),
    ("EPL-2.0", ["eclipse public license", "v 2 0"]),
    ("CC0-1.0", ["cc0 1 0 universal"]),
    ("CC-BY-SA-4.0", ["creative commons", "attribution sharealike 4 0 international"]),
    ("CC-BY-4.0", ["creative commons", "attribution 4 0 international"]),
    ("Unlicense", ["free and unencumbered software", "public domain"]),
    ("BSL-1.0", ["boost software license", "version 1 0"]),
    ("WTFPL", ["do what the fuck you want to"]),
    ("Zlib", ["must not claim that you wrote the original software", "altered source versions"]),
    ("BSD-3-Clause", ["redistribution and use in source and binary forms", "to endorse or promote products"]),
    (
        "BSD-2-Clause",
        ["redistribution and use in source and binary forms", "must reproduce the above copyright notice"],
    ),
    ("ISC", ["permission to use copy modify and or distribute", "appear in all copies"]),
    ("0BSD", ["permission to use copy modify and or distribute", "for any purpose with or without fee"]),
    ("MIT", ["permission is hereby granted free of charge", "substantial portions of the software"]),
]
NAMES = {
    "apache license 2 0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2 0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "mit license": "MIT",
    "isc license": "ISC",
    "isc license iscl": "ISC",
    "the unlicense unlicense": "Unlicense",
    "mozilla public license 2 0 mpl 2 0": "MPL-2.0",
    "gnu general public license v2 gplv2": "GPL-2.0",
    "gnu general public license v3 gplv3": "GPL-3.0",
    "gnu general public license v2 or later gplv2": "GPL-2.0",
    "gnu general public license v3 or later gplv3": "GPL-3.0",
    "gnu lesser general public license v3 lgplv3": "LGPL-3.0",
    "gnu affero general public license v3": "AGPL-3.0",
    "gplv2": "GPL-2.0",
    "gplv3": "GPL-3.0",
}
FILE_NAME = re.compile(rb"^(licen[cs]e|copying|unlicense)([-._].*)?$", re.IGNORECASE)
NOT_TEXT = re.compile(rb"\.(py|js|ts|go|rs|java|c|h|cc|rb|sh|json|ya?ml|html?|css|svg|png)$", re.IGNORECASE)
KNOWN = {name.lower(): name for name, _ in PHRASES}


def plain(text: str) -> str:
    """Words only: lower case, everything else one space."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def recognised(text: str) -> str | None:
    """The licence that ``text`` is, or None."""
    words = plain(text)
    return next((name for name, phrases in PHRASES if all(phrase in words for phrase in phrases)), None)


def named(text: str) -> set[str]:
    """The licences that a name, a classifier or an SPDX expression means; unknown ones as they are written.

    Versions "only" and "or later" count as the same here: the texts they refer to are the same.
    """
    text = text.removeprefix("License :: ").removeprefix("OSI Approved :: ").strip()
    known = NAMES.get(plain(text))
    if known:
        return {known}
    text = re.sub(r"\bWITH\s+\S+", " ", text)
    words = [word for word in re.split(r"[\s()/]+", text) if word and word.upper() not in {"AND", "OR"}]
    return {simplified(word) for word in words} if len(words) <= 12 else {text[:100]}


def simplified(identifier: str) -> str:
    base = re.sub(r"(-only|-or-later|\+)$", "", identifier.strip(",;\"'"), flags=re.IGNORECASE)
    return KNOWN.get(base.lower(), base[:100])


def is_licence_file(path: bytes) -> bool:
    directory, _, name = path.rpartition(b"/")
    in_reuse_directory = directory == b"LICENSES" or directory.endswith(b"/LICENSES")
    return in_reuse_directory or bool(FILE_NAME.match(name) and not NOT_TEXT.search(name))
