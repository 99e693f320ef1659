"""Places for measurements: separate environments with ordinary installs, temporary directories, and facts about
the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
RIVALS = ("langgraph-checkpoint-sqlite==3.1.2", "burr==0.42.0")


def cache() -> Path:
    """Return the directory of the environments that are kept between runs: ``$XDG_CACHE_HOME/stateline-bench``, else
    below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stateline-bench"


def installed(say: Any) -> Path:
    """The Python of an environment with an ordinary install of this checkout, made anew when the source changed.

    An editable install costs start-up time of its own. Raises ``CalledProcessError`` if pip fails.
    """
    return _environment("stateline", [str(CHECKOUT)], _source_digest(), say)


def with_rivals(say: Any) -> Path | None:
    """The Python of an environment with the others' packages, in pinned versions; None if pip cannot."""
    try:
        return _environment("rivals", RIVALS, " ".join(RIVALS), say)
    except subprocess.CalledProcessError as error:
        say(f"pip could not install {' '.join(RIVALS)}: {str(error.stderr)[-300:]}")
        return None


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in (CHECKOUT / "pyproject.toml", *sorted((CHECKOUT / "src").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _environment(name: str, packages: Sequence[str], content: str, say: Any) -> Path:
    place = cache() / f"{name}-{platform.python_version()}-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]}"
    python, stamp, whole = place / "bin" / "python", place / "stamp", place / "dependencies"
    if stamp.exists() and stamp.read_text() == content:
        return python
    say(f"installing {' '.join(packages)} into {place} ...")
    stamp.unlink(missing_ok=True)
    dependencies = (CHECKOUT / "pyproject.toml").read_text()
    only = ["--no-deps"] if whole.exists() and whole.read_text() == dependencies else []
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True, text=True)
    # The version stays the same from change to change; without force pip may leave the old files.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--force-reinstall", *only]
    subprocess.run([*pip, *packages], check=True, capture_output=True, text=True)
    whole.write_text(dependencies)
    # Last, so that an environment whose making was interrupted is made again.
    stamp.write_text(content)
    return python


def versions(python: Path | str, packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages that an environment has."""
    ask = (
        "import importlib.metadata as m, sys\nfor name in sys.argv[1:]:\n try: print(name, m.version(name))\n"
        " except m.PackageNotFoundError: pass"
    )
    done = subprocess.run([str(python), "-c", ask, *packages], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def facts(place: Path) -> dict[str, Any]:
    """Return the facts that figures depend on besides the code: processors, kernel, file system of ``place``, Python,
    versions."""
    return {
        "source": _source(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file_system": _file_system(place),
        "python": platform.python_version(),
        "versions": versions(sys.executable, ["stateline", "msgspec", "filelock"]),
        "create_us": _create(place),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _create(place: Path) -> float:
    """Median time of making an empty file [us]: a file system with much behind it can be a hundred times slower."""
    here = Path(tempfile.mkdtemp(dir=place))
    taken = []
    for number in range(100):
        began = time.perf_counter()
        os.close(os.open(here / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e6, 1)


def _source() -> str:
    """The commit of this checkout, marked if files differ from it; "" outside git."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=, changed"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _file_system(place: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    below = [mount for mount in mounts if place.resolve().is_relative_to(mount[1])]
    return max(below, key=lambda mount: len(mount[1]))[2] if below else "unknown"
