"""Commands as data, and the walk from the words of a call to its command and flags."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from stateline.cli.options import Settings, common_options
from stateline.cli.output import Output
from stateline.cli.parser import Argument, Parser, is_option, switch
from stateline.errors import UsageError

EXITS = {
    0: "done, or advanced by one turn",
    1: "error, or a run that failed or reached a bound",
    2: "the run is complete (execute -i and exec resume -i only)",
    3: "waiting for input",
    4: "conflict: the head moved, or the lock is held",
    5: "integrity: something stored is missing, altered or truncated",
    6: "unsafe permissions or ownership",
    64: "usage",
    130: "interrupted (143: terminated)",
}

Options = TypeVar("Options")


class Command(msgspec.Struct, Generic[Options], frozen=True, kw_only=True):
    """A command as two functions, each of which can be tested alone: turn flags into frozen options, and run these.
    The first line of ``help`` is its summary."""

    help: str
    arguments: Sequence[Argument] = ()
    options: Callable[[Namespace, Settings], Options]
    run: Callable[[Options], Output]


class Entry(msgspec.Struct, frozen=True):
    """A command in the table of all commands. ``place`` is a module of ``stateline.cli``, a dot and a name there: a
    module is loaded when its command is called. A ``hidden`` command is not listed."""

    place: str
    exits: tuple[int, ...]
    hidden: bool = False

    def load(self) -> Command[Any]:
        """The command."""
        import importlib

        module, _, name = self.place.partition(".")
        command: Command[Any] = getattr(importlib.import_module(f"stateline.cli.{module}"), name)
        return command

    def parser(self, path: Sequence[str]) -> Parser:
        """The parser of the command at ``path``."""
        command = self.load()
        arguments = [*command.arguments, *common_options(shown=False)]
        return Parser(" ".join(path), lambda: command.help, self._end, arguments)

    def _end(self) -> str:
        words = EXITS if 3 in self.exits else EXITS | {0: "done", 1: "error"}  # the others run nothing
        exits = " · ".join(f"{code} {words[code]}" for code in self.exits)
        return f"Common options, such as --state-dir and --format: see `stateline --help`.\n\nExit codes: {exits}."


class Group(msgspec.Struct, frozen=True):
    """A command that consists of commands."""

    help: str
    commands: dict[str, Entry | Group]

    def parser(self, path: Sequence[str]) -> Parser:
        """The parser of what stands between the group's name and the command's."""
        arguments = [switch("--version", help="Show the version."), *common_options(shown=len(path) == 1)]
        parser = Parser(" ".join(path), self._top, str, arguments)
        parser.usage_end = ["COMMAND", "..."]
        return parser

    def _top(self) -> str:
        rows = [f"  {name:<11} {summary}" for name, summary in self.summaries()]
        return "\n".join([f"{self.help}\n\ncommands:", *rows])

    def summaries(self) -> list[tuple[str, str]]:
        """The name and summary of each listed command."""
        found = []
        for name, node in self.commands.items():
            if isinstance(node, Group):
                found.append((name, node.help))
            elif not node.hidden:
                found.append((name, node.load().help.partition("\n")[0]))
        return found


class MissingCommandError(UsageError):
    """A group without a command. ``help`` is the help of the group."""

    def __init__(self, parser: Parser) -> None:
        super().__init__("no command was given", hint=f"see `{parser.prog} --help`")
        self.help = parser.format_help()


def fields_of(options: Callable[..., Options]) -> Callable[[Namespace, Settings], Options]:
    """A function that turns flags into ``options``, a struct with ``settings`` and a member for each flag."""
    names = [name for name in options.__struct_fields__ if name != "settings"]  # type: ignore[attr-defined]

    def build(flags: Namespace, settings: Settings) -> Options:
        return options(settings=settings, **{name: getattr(flags, name) for name in names})

    return build


def only_settings(flags: Namespace, settings: Settings) -> Settings:
    """The options of a command that has only the common ones."""
    return settings


def parse(root: Group, argv: Sequence[str]) -> tuple[Command[Any], Namespace]:
    """The command that ``argv`` names, and its flags. Raises ``UsageError``; ``SystemExit`` after ``--help``."""
    node: Group | Entry = root
    path, words, flags = ["stateline"], list(argv), Namespace()
    while isinstance(node, Group):
        if not words or is_option(words[0]):
            words = _parse_leading(node.parser(path), words, flags)
        name = words.pop(0)
        if name not in node.commands:
            raise _unknown_command(root, path, name)
        node = node.commands[name]
        path.append(name)
    node.parser(path).parse(words, flags)
    return node.load(), flags


def _parse_leading(parser: Parser, words: list[str], flags: Namespace) -> list[str]:
    """Parse the options before a command's name; the words from that name on."""
    count = parser.leading_options(words)
    parser.parse(words[:count], flags)
    if flags.version:
        from stateline._version import __version__
        from stateline.cli.output import write_stdout

        write_stdout(f"stateline {__version__}\n".encode())
        raise SystemExit(0)
    if count >= len(words):
        raise MissingCommandError(parser)
    return words[count:]


def _unknown_command(root: Group, path: Sequence[str], name: str) -> UsageError:
    """An error that names the command of that name, or of a similar one, wherever it is."""
    from stateline.machine.definition.formats.reader import format_of
    from stateline.machine.problems import did_you_mean

    here = " ".join(path)
    places = _places(root, "stateline")
    similar = [name] if name in places else did_you_mean(name, list(places)).split("'")[1:2]
    if name == "version":
        similar, places = [name], {name: "stateline --version"}
    hint = f"did you mean `{places[similar[0]]}`? " if similar else ""
    if not similar and format_of(name) is not None:
        import shlex

        hint = f"`stateline execute {shlex.quote(name)}` runs a machine file; "
    return UsageError(f"{here} has no command {name!r}", hint=f"{hint}`{here} --help` lists the commands")


def _places(group: Group, path: str) -> dict[str, str]:
    """The whole name of each listed command by its last word; of two commands, the one nearer to the root."""
    places: dict[str, str] = {}
    for name, node in sorted(group.commands.items(), key=lambda item: isinstance(item[1], Group)):
        if isinstance(node, Group):
            places = _places(node, f"{path} {name}") | {name: f"{path} {name}"} | places
        elif not node.hidden:
            places.setdefault(name, f"{path} {name}")
    return places
