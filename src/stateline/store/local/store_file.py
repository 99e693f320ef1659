"""The store file, ``stateline.json``: it names the format and identifies the store."""

from __future__ import annotations

import os
from contextlib import suppress

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import FORMAT
from stateline.errors import IntegrityError, NewerVersionError, RequestError, UnsafePathError
from stateline.store.local.atomic_write import put_file
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError, Stat
from stateline.store.protocol import DAMAGE_HINT

SMALL_FILE = 4096
"""Largest pointer or store file that is read [bytes]."""


def read_store_file(fs: Filesystem, root: Directory) -> Stat:
    """Check the store file and return its attributes.

    Raises FileNotFoundError, ``UnsafePathError``, ``NewerVersionError`` or ``IntegrityError``.
    """
    path = f"{root.path}/{naming.STORE_FILE}"
    try:
        data, stat = fs.read(root, naming.STORE_FILE, SMALL_FILE)
        document = canonical.decode(data)
    except NotRegularFileError as error:
        raise UnsafePathError(f"{path} is {error.strerror}; nothing was changed", hint="inspect it by hand") from None
    except FileTooLargeError as error:
        message = f"{path} is too large: {error.strerror}"
        raise IntegrityError(message, finding="too_large", hint=DAMAGE_HINT) from None
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error.message}", finding=error.finding, hint=DAMAGE_HINT) from None
    name = document.get("format") if isinstance(document, dict) else None
    if name != FORMAT:
        if isinstance(name, str) and naming.is_format(name):
            raise NewerVersionError(
                f"{root.path} is of format {name}; this Stateline reads {FORMAT}. It was left untouched.",
                hint="upgrade stateline",
            )
        message = f"{path} does not say that this is a state dir"
        raise IntegrityError(message, finding="malformed", hint=DAMAGE_HINT)
    if not naming.is_store_id(document.get("store_id")):
        raise IntegrityError(f"{path} has no `store_id`", finding="malformed", hint=DAMAGE_HINT)
    return stat


def make_store_file(fs: Filesystem, root: Directory) -> None:
    """Write a new store file, not synced in its directory yet. Raises ``BlobExistsError`` if there is one."""
    data = canonical.encode({"format": FORMAT, "store_id": os.urandom(16).hex()})
    # Synced with either durability: it is made once, and a store without it is damaged.
    put_file(fs, (root, root), naming.STORE_FILE, data, durable=True)


def require_empty(fs: Filesystem, root: Directory) -> None:
    """Raise unless the directory may become a state dir: a lost store file is damage, foreign files are a mistake.

    Returns if a good store file has appeared meanwhile.
    """
    foreign = sorted(name for name in fs.names(root) if not name.startswith((naming.TEMPORARY, "lost+found")))
    if not foreign:
        return
    with suppress(FileNotFoundError):
        # Another process may have made the store between the look for its file and the listing.
        read_store_file(fs, root)
        return
    if any(naming.is_sha256(name) for name in foreign):
        message = f"{naming.STORE_FILE} is missing in {root.path}"
        raise IntegrityError(message, finding="missing", hint=DAMAGE_HINT)
    raise RequestError(
        f"{root.path} is not a state dir and is not empty (it holds {foreign[0]!r}); nothing was written",
        hint="choose an empty directory with --state-dir",
    )
