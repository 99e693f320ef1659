"""`python killed_call.py NTH WORDS...`: the program `stateline WORDS`, ended by SIGKILL right before the store
publishes something for the NTH time (a link or a rename); if it never comes to that, it ends as it would."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from stateline.cli.main import main
from stateline.store.local.filesystem import Filesystem


def kill_before(nth: int) -> None:
    """From here on the process dies before its ``nth`` publication."""
    published = itertools.count(1)
    kind = type(Filesystem())

    def guarded(call: Any) -> Any:
        def publish(*arguments: Any) -> Any:
            if next(published) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return publish

    for name in ("link", "rename"):
        setattr(kind, name, guarded(getattr(kind, name)))


if __name__ == "__main__":
    kill_before(int(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    main()
