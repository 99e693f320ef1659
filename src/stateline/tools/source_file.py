"""Read a file that a person wrote: a machine file or a tools manifest."""

from __future__ import annotations

import os
import stat

from stateline.bundle.limits import DEFAULT, Limits
from stateline.errors import NotFoundError, RequestError, StorageError


def read_source_file(path: str, kind: str, formats: str, limits: Limits = DEFAULT) -> tuple[str, bytes]:
    """Return the real path and the exact bytes of a file. Messages name its ``kind``, hints its ``formats``.

    Raises ``NotFoundError``; ``StorageError`` if it cannot be read; ``RequestError`` if its path is not UTF-8, if it is
    not a regular file (a FIFO is not waited for), or is larger than the limit ``manifest``.
    """
    try:
        real = os.path.realpath(path)
        real.encode()
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RequestError(f"{path!r} is not a regular file", hint=f"name a {kind} ({formats})")
        with os.fdopen(fd, "rb") as file:
            data = file.read(limits.manifest + 1)
    except UnicodeEncodeError:
        message = f"the path {path!r} is not UTF-8, so a run could not record it; nothing was stored"
        raise RequestError(message, hint="rename it") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL
        raise NotFoundError(f"there is no {kind} {path!r}", hint="check the path") from None
    except OSError as error:
        raise StorageError(f"cannot read the {kind} {path!r}: {error.strerror}", hint="check the path") from None
    if len(data) > limits.manifest:
        raise RequestError(f"{path!r} is larger than {limits.text('manifest')}", hint=f"is it a {kind}?")
    return real, data
