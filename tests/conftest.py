"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline, and no complaint about slow generation: examples touch the disk, and a busy machine is not a defect.
# Derandomized on a build server: the same commit gives the same answer.
_PATIENT = [HealthCheck.too_slow]
settings.register_profile("local", deadline=None, suppress_health_check=_PATIENT)
settings.register_profile("ci", deadline=None, suppress_health_check=_PATIENT, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
