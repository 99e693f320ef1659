"""Several processes that record to one directory, and killed ones: no exchange is lost or paid for twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from each_case import each
from model.recording_samples import read_exchanges

from stateline.model.protocol import ModelRequest
from stateline.model.recordings.playback import MODES, Playback

TESTS = Path(__file__).resolve().parent.parent

# Records as many exchanges as it is told, under requests of its own.
MANY = """
import sys
from model.recording_samples import ModelRecord, ask
from stateline.model.recordings.recorder import Recorder
place, who, count = sys.argv[1:]
recorder = Recorder(ModelRecord(), place)
for number in range(int(count)):
    recorder.reply(ask(f"{who} {number}"))
assert not recorder.warnings, recorder.warnings
print(*recorder.used)
"""

# A run of `turns` turns: a call is paid for (a line in `ledger`), recorded, and then saved with the run (`saved`). With
# `die` it ends by its own hand right before that save.
RUN = """
import json, os, signal, sys
from model.recording_samples import ModelRecord, talk
from stateline.model.recordings.recorder import Recorder
place, saved, ledger, turns, die = sys.argv[1:]

def pay(request):
    with open(ledger, "a") as file:
        file.write(request.key + "\\n")
    return f"answer {len(request.messages) // 2 + 1}"

while True:
    used = json.load(open(saved)) if os.path.exists(saved) else []
    if len(used) == int(turns):
        break
    request = talk(len(used) + 1, key=f"run:{len(used)}:0:ab")[-1]
    recorder = Recorder(ModelRecord(pay), place, used=used)
    recorder.reply(request)
    if die == "yes":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(saved + ".new", "w") as file:
        json.dump(recorder.used, file)
    os.replace(saved + ".new", saved)
"""


def start(code: str, *args: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_record_at_once_lose_nothing_and_share_no_number(tmp_path: Path) -> None:
    started = [start(MANY, tmp_path / "rec", who, 40) for who in "abc"]
    used = {}
    for who, process in zip("abc", started, strict=True):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        used[who] = [int(word) for word in out.split()]
    assert sorted(number for numbers in used.values() for number in numbers) == list(range(1, 121))
    found = {exchange.number: exchange.reply.content for exchange in read_exchanges(tmp_path / "rec")}
    assert found == {number: f"to {who} {n}" for who in used for n, number in enumerate(used[who])}
    assert sorted(os.listdir(tmp_path / "rec"))[0] == "0001.json"  # no temporary file is left


def requests(turns: int) -> list[ModelRequest]:
    from model.recording_samples import talk

    return talk(turns)


@each("mode", MODES)
def test_a_reply_recorded_by_a_process_that_died_before_its_save_is_paid_for_once(tmp_path: Path, mode: str) -> None:
    place, saved, ledger = tmp_path / "rec", tmp_path / "saved", tmp_path / "ledger"
    for turns in range(1, 4):
        for die in ("yes", "yes", "no"):
            process = start(RUN, place, saved, ledger, turns, die)
            process.communicate(timeout=60)
            assert process.returncode == (-signal.SIGKILL if die == "yes" else 0)
    assert ledger.read_text().split() == ["run:0:0:ab", "run:1:0:ab", "run:2:0:ab"]
    assert json.loads(saved.read_text()) == [1, 2, 3]
    playback = Playback(place, mode)  # type: ignore[arg-type]
    assert [playback.reply(request).content for request in requests(3)] == ["answer 1", "answer 2", "answer 3"]
    assert playback.closing() == []


def test_killed_at_any_moment_a_recording_is_whole_and_holds_each_turn_once(tmp_path: Path) -> None:
    place, saved, ledger = tmp_path / "rec", tmp_path / "saved", tmp_path / "ledger"
    draw, turns, killed = random.Random(20261122), 60, 0
    while True:
        process = start(RUN, place, saved, ledger, turns, "no")
        # Importing takes most of the time; what is of interest comes after the first sign of work.
        before = len(ledger.read_text()) if ledger.exists() else 0
        while process.poll() is None and (not ledger.exists() or len(ledger.read_text()) == before):
            time.sleep(0.001)
        time.sleep(draw.random() * 0.03)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        found = read_exchanges(place) if place.exists() else []
        assert len(found) - len(json.loads(saved.read_text()) if saved.exists() else []) in (0, 1)
    assert killed > 1
    found = read_exchanges(place)
    assert [exchange.key for exchange in found] == [f"run:{turn}:0:ab" for turn in range(turns)]
    assert json.loads(saved.read_text()) == [exchange.number for exchange in found] == list(range(1, turns + 1))
    playback = Playback(place, "strict")
    assert [playback.reply(request).content for request in requests(turns)] == [
        f"answer {n}" for n in range(1, turns + 1)
    ]
