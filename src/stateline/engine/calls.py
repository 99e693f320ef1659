"""The tool calls of one reply: performed in parallel, each result saved as soon as it arrives.

Programs run in worker threads; decisions and saves happen in the calling thread. The intents of all tools of the reply
that are not repeatable are saved at once before any starts. On a signal, finished results are saved and running
programs are terminated: the next call repeats the repeatable ones with the same keys, and asks a person about the
others.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.dry_run_stop import Watch, require_real_run
from stateline.engine.event_codec import Cost
from stateline.engine.record import Run, read_run
from stateline.engine.step import EventContext, add_to, apply, stage_of, take, unrepeatable_calls
from stateline.errors import DurabilityUnknownError, StatelineError
from stateline.machine.decider import agents
from stateline.machine.decider.run import CallEnded, CallsIntended
from stateline.process.child import TICK
from stateline.process.signals import interruptible

if TYPE_CHECKING:
    from stateline.tools.runner import ToolRun


class _End(msgspec.Struct, frozen=True):
    """A call that is over: its result, or UNSET where it has none because it was stopped, or ``error`` was raised."""

    id: str
    result: Json | msgspec.UnsetType = msgspec.UNSET
    error: Any = None


def perform_calls(run: Run, watch: Watch, dependencies: Dependencies) -> Run:
    """The run after the pending tool calls that are not done; none of them must be in doubt. To be called inside a
    shield and under the scope's lock.

    Raises ``Interrupted`` when a signal ended them; what was finished by then is saved, and where it cannot be, the
    error says so instead and shows it.
    """
    require_real_run(run, dependencies)
    watch(run, "calls")
    received: list[_End] = []
    todo = [call for call in run.state.tree.pending if call["status"] != "done"]
    workers = ToolWorkers(min(max(dependencies.jobs, 1), len(todo)))
    try:
        intended = unrepeatable_calls(run)
        if intended:
            run = apply(run, CallsIntended(ids=intended), dependencies)
        workers.begin([(call["id"], _tool_run(run, call)) for call in todo])
        since = time.monotonic()
        while workers.left:
            received = [workers.ended()]
            run, since = _keep(run, received[0], dependencies, since)
        return run
    except BaseException as error:
        workers.stop()
        # It is unknown if that result was saved, so it is checked again; any other error names its result.
        again = received if isinstance(error, DurabilityUnknownError) else []
        _save_rest(_reloaded(run) if again else run, [*again, *workers.rest()], dependencies, error)
        raise
    finally:
        workers.stop()


def _keep(run: Run, end: _End, dependencies: Dependencies, since: float) -> tuple[Run, float]:
    """The run with that result saved, and the time [monotonic s] up to which activity has been metered. Calls that run
    together take their time together."""
    if end.error is not None:
        raise end.error
    if end.result is msgspec.UNSET:
        return run, since
    now = time.monotonic()
    event = CallEnded(id=end.id, result=end.result)
    return take(run, EventContext(event=event, cost=Cost(seconds=now - since), dependencies=dependencies)), now


def _save_rest(run: Run, ends: list[_End], dependencies: Dependencies, error: BaseException) -> None:
    """Save the finished results of ``ends``. A result that cannot be saved exists nowhere else: ``error``, or an error
    raised from it, includes it."""
    since = time.monotonic()
    unsaved: list[StatelineError] = []
    for end in ends:
        try:
            if any(call["id"] == end.id and call["status"] != "done" for call in run.state.tree.pending):
                run, since = _keep(run, end, dependencies, since)
        except StatelineError as another:
            unsaved.append(another)
            run = _reloaded(run)
        except Exception as another:  # noqa: BLE001 (of a tool's thread: the first error is the one that is raised)
            if isinstance(error, StatelineError):
                add_to(error, str(another))
    if not unsaved:
        return
    reported = error if isinstance(error, StatelineError) else unsaved.pop(0)
    for more in unsaved:
        add_to(reported, more.message)
    if reported is not error:
        add_to(reported, str(error))
        raise reported from error


def _reloaded(run: Run) -> Run:
    """Return the run at its head, which a failed save may have moved; the run as it is if the head cannot be read."""
    try:
        return read_run(run.scope.store, run.scope, run.scope.load())
    except StatelineError:
        return run


def _tool_run(run: Run, call: dict[str, Json]) -> ToolRun:
    from stateline.tools.runner import ToolRun

    redact = run.scope.store.redactor.redact
    return ToolRun(
        tool=next(tool for tool in agents.offered(run.machine, stage_of(run)) if tool.name == call["name"]),
        arguments=call["arguments"],
        directory=os.path.dirname(str((run.event.get("tools") or run.event["machine"])["path"])),
        run=run.id,
        key=run.event["calls"]["keys"][call["id"]],
        mask=lambda text: str(redact(text)[0]),
        limits=run.scope.store.limits,
    )


class ToolWorkers:
    """Threads that perform tool calls. They are there before any intent is saved: a call that was intended starts."""

    def __init__(self, size: int) -> None:
        """Raises ``RuntimeError`` when the system gives no thread at all."""
        self._stop = threading.Event()
        self._given = threading.Semaphore(0)
        self._changed = threading.Event()
        self._todo: deque[tuple[str, ToolRun]] = deque()
        self._ends: list[_End] = []
        self._taken = 0
        self._wanted = 0
        self._threads: list[threading.Thread] = []
        for _ in range(size):
            thread = threading.Thread(target=self._work, name="stateline-tool", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                break
            self._threads.append(thread)

    @property
    def left(self) -> int:
        """The number of calls that :meth:`ended` has not returned."""
        return self._wanted - self._taken

    def begin(self, runs: list[tuple[str, ToolRun]]) -> None:
        """Start the calls, by id, in this order."""
        self._wanted = len(runs)
        self._todo.extend(runs)
        self._given.release(len(runs))

    def ended(self) -> _End:
        """Wait for the next call that is over. A signal is raised in here, and takes none of them along."""
        with interruptible():
            while len(self._ends) == self._taken:
                self._changed.wait(TICK)
                self._changed.clear()
        self._taken += 1
        return self._ends[self._taken - 1]

    def rest(self) -> list[_End]:
        """After :meth:`stop`: the ends of all calls that have not been handed out."""
        return self._ends[self._taken :]

    def stop(self) -> None:
        """End the calls that are under way, start no more, and wait for the threads to be gone. To be called inside a
        shield: on Python 3.11 a join that a signal breaks off takes the thread for ended."""
        self._stop.set()
        self._given.release(len(self._threads))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            self._given.acquire()
            try:
                name, tool_run = self._todo.popleft()
            except IndexError:
                return
            self._ends.append(self._perform(name, tool_run))
            self._changed.set()

    def _perform(self, name: str, tool_run: ToolRun) -> _End:
        from stateline.tools.runner import run_tool

        try:
            end = run_tool(tool_run, self._stop)
        except BaseException as error:  # noqa: BLE001 (raised again in the calling thread)
            return _End(name, error=error)
        return _End(name) if end.stopped else _End(name, end.result)
