"""The parser of one command.

Built on argparse, with three differences: an option takes the next word as its value even if that word begins with a
dash; options and arguments may be mixed; a mistake raises ``UsageError``.
"""

from __future__ import annotations

import argparse
from argparse import Action, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from stateline.errors import UsageError

_WIDTH = 80
"""Columns of help on a wide terminal: longer lines are hard to read."""
_OTHER_NAMES = {"--state-refine": "--refine-text"}
"""Names that options have in similar programs."""
_FORMS = {"?": "[{}]", "+": "{}..."}
"""Forms of an argument in the usage line, by its number of words."""


class Argument(NamedTuple):
    """An argument or an option of a command: what argparse takes to declare it."""

    names: tuple[str, ...]
    keywords: dict[str, Any]


def argument(*names: str, **keywords: Any) -> Argument:
    """Declare an argument or an option, as argparse does."""
    return Argument(names, keywords)


def switch(*names: str, help: str) -> Argument:
    """Declare an option without a value."""
    return Argument(names, {"action": "store_true", "help": help})


def repeatable(name: str, metavar: str, help: str) -> Argument:
    """Declare an option that may be given more than once; its value is a list."""
    return Argument((name,), {"action": "append", "default": [], "metavar": metavar, "help": f"{help} (repeatable)."})


class Parser(argparse.ArgumentParser):
    """The parser of one command. ``declared`` lists its arguments and options; ``top`` and ``end`` return the texts
    of its help above and below those."""

    def __init__(
        self, prog: str, top: Callable[[], str], end: Callable[[], str], arguments: Iterable[Argument]
    ) -> None:
        self.declared: list[Action] = []
        self._texts = top, end
        self.usage_end: list[str] = []
        # Given a width, argparse does not load shutil for each argument.
        super().__init__(prog, allow_abbrev=False, add_help=False, formatter_class=_formatter(_WIDTH))
        for names, keywords in [argument("-h", "--help", action="help", help="Show this help."), *arguments]:
            self.declared.append(self.add_argument(*names, **keywords))

    def positionals(self) -> list[Action]:
        """The arguments, in order."""
        return [action for action in self.declared if not action.option_strings]

    def option(self, name: str) -> Action | None:
        """The option of that name."""
        return next((action for action in self.declared if name in action.option_strings), None)

    def parse(self, words: Sequence[str], flags: Namespace) -> None:
        """Parse ``words`` into ``flags``. Raises ``UsageError``; ``SystemExit`` after ``--help`` and ``--version``."""
        _, unknown = self.parse_known_args(self._arranged(words), flags)
        for word in unknown:
            self._reject(word.partition("=")[0])

    def leading_options(self, words: Sequence[str]) -> int:
        """The number of words before the first that is neither an option nor an option's value."""
        index = 0
        while index < len(words) and is_option(words[index]):
            index += 2 if takes_value(self.option(words[index])) else 1
        return index

    def _arranged(self, words: Sequence[str]) -> list[str]:
        """Arguments before options, and each option in one word with its value. Raises ``UsageError`` for an unknown
        option, also beside ``--help``."""
        arguments: list[str] = []
        options: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--":
                arguments += rest
            elif word.startswith("--"):
                name, equals, _ = word.partition("=")
                options.append(word if equals else self._with_value(name, None, rest))
            elif is_option(word):
                letters = list(self._letters(word, rest))
                if len(word) > 2 and (
                    self._double(word) or not all(self.option(name.partition("=")[0]) for name in letters)
                ):
                    self._reject(word.partition("=")[0])
                options += letters
            else:
                arguments.append(word)
        for word in filter(is_option, arguments):
            self._reject(word)
        for word in options:
            name, _, value = word.partition("=")
            if self.option(name) is None:
                self._reject(name)
            if value == "--":  # argparse drops it (Python before 3.13)
                self.error(f"the value of {name} cannot be '--'")
        return ["--help"] if {"-h", "--help"} & set(options) else arguments + options

    def _letters(self, word: str, rest: Iterator[str]) -> Iterator[str]:
        """The options in a word such as ``-vp``. A value follows the last, in the same word or the next."""
        for index in range(1, len(word)):
            name = f"-{word[index]}"
            if takes_value(self.option(name)):
                yield self._with_value(name, word[index + 1 :] or None, rest)
                return
            yield name

    def _with_value(self, name: str, value: str | None, rest: Iterator[str]) -> str:
        """The option in one word with its value, which is the next of ``rest`` unless it is given."""
        action = self.option(name)
        if action is None or not takes_value(action):
            return name
        value = next(rest, None) if value is None else value
        return name if value is None else f"{action.option_strings[-1]}={value}"

    def _reject(self, word: str) -> NoReturn:
        if not is_option(word):
            self.error(f"unexpected argument {word!r}")
        from stateline.machine.problems import did_you_mean

        double = self._double(word)
        names = [name for action in self.declared for name in action.option_strings]
        near = f"did you mean {double!r}?" if double else did_you_mean(word, names)
        self.error(f"unknown option {word}{near and f'; {near}'}")

    def _double(self, word: str) -> str:
        """Return the option with two dashes that a ``word`` with one dash means, as in Go; "" for none."""
        name = "-" + word.partition("=")[0]
        name = _OTHER_NAMES.get(name, name)
        return name if len(name) > 3 and not word.startswith("--") and self.option(name) else ""

    def format_help(self) -> str:
        """The help, with its texts wrapped to the terminal's width."""
        import shutil

        width = min(shutil.get_terminal_size().columns, _WIDTH)
        self.formatter_class = _formatter(width)
        arguments = [_FORMS.get(str(each.nargs), "{}").format(each.metavar) for each in self.positionals()]
        self.usage = " ".join([self.prog, "[OPTIONS]", *(arguments or self.usage_end)])
        self.description, self.epilog = (_wrapped(text(), width) for text in self._texts)
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help on standard output. Raises ``StorageError`` if that takes nothing."""
        from stateline.cli.output import write_stdout

        write_stdout(self.format_help().encode())

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(message, hint=f"see `{self.prog} --help`")


def is_option(word: str) -> bool:
    """True for a word that has the form of an option. A lone dash means standard input."""
    return len(word) > 1 and word.startswith("-")


def takes_value(action: Action | None) -> bool:
    """True for an option that takes the next word as its value."""
    return action is not None and action.nargs is None


def _formatter(width: int) -> Any:
    return lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=width)


def _wrapped(text: str, width: int) -> str:
    """``text`` wrapped by paragraph; a paragraph with an indented line is a list, which is wrapped by its author."""
    from textwrap import fill

    return "\n\n".join(part if "\n " in part else fill(part, width) for part in text.split("\n\n"))
