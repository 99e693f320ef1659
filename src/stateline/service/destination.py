"""``execute --destination``: a complete run's outputs as files, for programs that know nothing of stores."""

from __future__ import annotations

import os

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError, StorageError
from stateline.service.outcome import Outcome


def write_outputs(outcome: Outcome, directory: str) -> list[str]:
    """Write ``output.json`` (the newest output) and ``outputs/<stage>.json`` below ``directory``, which is made if it
    is absent; the paths written. Each file replaces an older one at once. A run that is not complete writes nothing.

    Raises ``StorageError`` when the file system refuses; files before that one are written.
    """
    if outcome.status != "complete":
        return []
    files = {"output.json": outcome.output}
    for stage, output in sorted(outcome.outputs.items()):
        # Stage names come from a stored spec, which must not choose where a file is written.
        if not naming.is_id(stage):
            raise IntegrityError(f"the stage {stage[:40]!a} has no name that can be a file's; nothing was written")
        files[os.path.join("outputs", f"{stage}.json")] = output
    try:
        os.makedirs(os.path.join(directory, "outputs"), exist_ok=True)
        return [_write(os.path.join(directory, name), output) for name, output in files.items()]
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot write the outputs to {directory}: {error}; the run itself is complete and saved",
            hint="choose another --destination and call again with --id",
        ) from None


def _write(path: str, output: Json) -> str:
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(output, order="sorted"), indent=2) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    return path
