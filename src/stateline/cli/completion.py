"""``stateline completion``, and the command that its scripts call at each TAB.

The candidates come from the parsers themselves, so there is no second list. Without candidates, the shell completes
names of files.
"""

from __future__ import annotations

import os
import shlex
from argparse import Action
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from stateline.cli.command import Command, Entry, Group, fields_of
from stateline.cli.options import Settings
from stateline.cli.output import Output, one_line
from stateline.cli.parser import Parser, is_option, takes_value
from stateline.errors import StatelineError

Candidate = tuple[str, str]
"""A word and its description."""
_MOST_SCOPES = 1000
"""Most scopes that are read: each costs a read, and nobody chooses among more."""

BASH = r"""_stateline() {
    local line=${COMP_LINE:0:COMP_POINT} word help cut
    # bash breaks words at : and =, and replaces only the last piece.
    cut=${line##*[[:space:]]}
    case $cut in
        *[:=]*) cut=${cut%"${cut##*[:=]}"} ;;
        *) cut= ;;
    esac
    COMPREPLY=()
    while IFS=$'\t' read -r word help; do
        case $help in
            # The shell quotes names of files, and no other words; one without compopt completes names of files itself.
            'machine file' | directory) compopt -o filenames 2> /dev/null || { COMPREPLY=() && return; } ;;
        esac
        COMPREPLY+=("${word#"$cut"}")
    done < <("$1" complete -- "$line" 2> /dev/null)
}
complete -o default -F _stateline stateline
"""
ZSH = r"""#compdef stateline
_stateline() {
    local -a found files
    local word help
    while IFS=$'\t' read -r word help; do
        case $help in
            'machine file' | directory) files+=("$word") ;;
            *) found+=("${word//:/\\:}:$help") ;;
        esac
    done < <("${words[1]}" complete -- "${(j: :)words[1,CURRENT]}" 2> /dev/null)
    if (( ${#files} )); then
        compadd -f -S '' -a files
    elif (( ${#found} )); then
        _describe stateline found
    else
        _files
    fi
}
compdef _stateline stateline
"""
FISH = r"""function __stateline_complete
    set -l found (stateline complete -- (commandline -cp) 2> /dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command stateline --no-files --arguments '(__stateline_complete)'
"""
_SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class CompletionOptions(msgspec.Struct, frozen=True):
    """Options of ``completion``."""

    settings: Settings
    shell: str


def _completion_arguments(parser: Parser) -> None:
    parser.add_argument("shell", metavar="bash|zsh|fish", choices=tuple(_SCRIPTS), help="The shell.")


def _script(options: CompletionOptions) -> bytes:
    return _SCRIPTS[options.shell].encode()


class CompleteOptions(msgspec.Struct, frozen=True):
    """Options of ``complete``: the command line up to the cursor."""

    settings: Settings
    line: str


def _complete_arguments(parser: Parser) -> None:
    parser.add_argument("line", metavar="LINE", help="The command line up to the cursor.")


def _complete(options: CompleteOptions) -> bytes:
    lines = [f"{word}\t{one_line(help, 100)}\n" for word, help in candidates(options.line)]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _raw_output(options: CompletionOptions | CompleteOptions, data: bytes) -> Output:
    return Output(raw=data)


def candidates(line: str) -> list[Candidate]:
    """Candidates for the last word of ``line``, which begins with the program's name. Empty where only a file can
    follow, and for a line that cannot be understood."""
    found: set[Candidate] = set()
    try:
        found.update(_candidates(line))  # those before an error stay
    except (StatelineError, OSError, ValueError):
        pass
    return sorted(found)


class _Cursor:
    """The place in a command line after some words: the command, the option that waits for its value, the number of
    arguments, and the state dir."""

    def __init__(self) -> None:
        from stateline.cli.app import COMMANDS

        self.node: Group | Entry = COMMANDS
        self.path = ["stateline"]
        self.parser = self.node.parser(self.path)
        self.option: Action | None = None
        self.arguments = 0
        self.state_dir: str | None = None

    def read(self, word: str) -> None:
        """Move over ``word``. Raises ``ValueError`` for an unknown command."""
        if self.option is not None:
            self._set(self.option, word)
            self.option = None
        elif is_option(word):
            name, equals, value = word.partition("=")
            option = self.parser.option(name)
            if option is not None and takes_value(option):
                if equals:
                    self._set(option, value)
                else:
                    self.option = option
        elif isinstance(self.node, Entry):
            self.arguments += 1
        elif word in self.node.commands:
            self.node = self.node.commands[word]
            self.path.append(word)
            self.parser = self.node.parser(self.path)
        else:
            raise ValueError(word)

    def _set(self, option: Action, value: str) -> None:
        if option.dest == "state_dir":
            self.state_dir = value

    def argument(self) -> Action | None:
        """The next argument; the last one may take several words."""
        places = self.parser.positionals()
        if self.arguments < len(places):
            return places[self.arguments]
        return places[-1] if places and places[-1].nargs == "+" else None

    def settings(self) -> Settings:
        """The settings that the line names so far."""
        return Settings(state_dir=self.state_dir or os.environ.get("STATELINE_STATE_DIR"))


def _candidates(line: str) -> Iterator[Candidate]:
    words = _split(line)[1:]
    last = words.pop() if words and not line[-1:].isspace() else ""
    cursor = _Cursor()
    for word in words:
        cursor.read(word)
    prefix, option = "", cursor.option
    if option is None and last.startswith("--") and "=" in last:
        name, _, value = last.partition("=")
        prefix, last, option = f"{name}=", value, cursor.parser.option(name)
    for word, help in _following(cursor, option, last):
        if word.startswith(last) and word.isprintable():
            yield prefix + word, help


def _split(line: str) -> list[str]:
    """The words of a command line; an unclosed quote ends with the line."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words += lexer
    except ValueError:
        words.append(lexer.token)
    return words


def _following(cursor: _Cursor, option: Action | None, last: str) -> Iterator[Candidate]:
    """Words that may follow: values of ``option``, options, commands, or values of the next argument."""
    if option is not None:
        return _values(cursor, option, last)
    if last.startswith("-"):
        declared = cursor.parser.declared
        return iter([(name, str(action.help)) for action in declared for name in action.option_strings])
    if isinstance(cursor.node, Group):
        return iter(cursor.node.summaries())
    argument = cursor.argument()
    return iter(()) if argument is None else _values(cursor, argument, last)


def _values(cursor: _Cursor, action: Action, last: str) -> Iterator[Candidate]:
    """Values of an option or argument, by the word for them in its help."""
    kind = str(action.metavar)
    if "|" in kind and kind.replace("|", "").islower():
        return iter([(word, "") for word in kind.split("|")])
    if kind == "MACHINE":
        return _machines(last)
    return _VALUES[kind](cursor) if kind in _VALUES else iter(())


def _machines(last: str) -> Iterator[Candidate]:
    """Machine files, and directories."""
    from stateline.machine.definition.formats.reader import EXTENSIONS

    directory, name = os.path.split(last)
    with os.scandir(os.path.expanduser(directory) or ".") as entries:
        for entry in entries:
            path = os.path.join(directory, entry.name)
            if entry.name.startswith(".") and not name.startswith("."):
                continue
            if entry.is_dir():
                yield path + "/", "directory"
            elif entry.name.lower().endswith(EXTENSIONS):
                yield path, "machine file"


def _runs(cursor: _Cursor) -> Iterator[Candidate]:
    return _names(cursor, "run:")


def _contexts(cursor: _Cursor) -> Iterator[Candidate]:
    return _names(cursor, "context:")


def _names(cursor: _Cursor, kind: str) -> Iterator[Candidate]:
    """Names of scopes of one kind that are ids: other users may have written the store."""
    from stateline.bundle.naming import is_id

    for key, _ in _scopes(cursor):
        if key.startswith(kind) and is_id(key[len(kind) :]):
            yield key[len(kind) :], ""


def _scopes(cursor: _Cursor) -> Iterator[Candidate]:
    """Keys of scopes that need no quotes: a key may hold any printable character, and bash inserts words unquoted."""
    for head in islice(cursor.settings().store().heads(), _MOST_SCOPES):
        key = head.envelope.scope
        if shlex.quote(key) == key:
            yield key, ""


_VALUES: dict[str, Callable[[_Cursor], Iterator[Candidate]]] = {
    "NAME": _contexts,
    "RUN": _runs,
    "REV": _scopes,
    "OLD": _scopes,
    "NEW": _scopes,
    "KEY": _scopes,
}

COMPLETION = Command(
    help="""Print the script that completes commands and names in a shell.

bash: eval "$(stateline completion bash)" in ~/.bashrc. zsh: eval "$(stateline completion zsh)" in ~/.zshrc, after
compinit. fish: stateline completion fish | source, in ~/.config/fish/config.fish.""",
    arguments=_completion_arguments,
    options=fields_of(CompletionOptions),
    run=_script,
    output=_raw_output,
)
COMPLETE = Command(
    help="Print the candidates for the last word of a command line, for the scripts of `completion`.",
    arguments=_complete_arguments,
    options=fields_of(CompleteOptions),
    run=_complete,
    output=_raw_output,
)
