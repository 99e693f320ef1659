"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: examples touch the disk, and a busy machine is not a defect. Derandomized on a build server: the same
# commit gives the same answer.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
