"""``stateline completion``, and the command that its scripts call at each TAB.

The candidates come from the parsers themselves, so there is no second list. Without candidates, the shell completes
names of files.
"""

from __future__ import annotations

import os
import shlex
from argparse import Action
from collections.abc import Iterator
from itertools import islice

import msgspec

from stateline.cli.command import Command, Entry, Group, fields_of
from stateline.cli.options import Settings, common_options
from stateline.cli.output import Output, one_line
from stateline.cli.parser import argument, is_option, takes_value
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
        COMPREPLY+=("${word#"$cut"}")
    done < <("$1" complete -- "$line" 2> /dev/null)
}
complete -o default -F _stateline stateline
"""
ZSH = r"""#compdef stateline
_stateline() {
    local -a found
    local word help
    while IFS=$'\t' read -r word help; do
        found+=("${word//:/\\:}:$help")
    done < <("${words[1]}" complete -- "${(j: :)words[1,CURRENT]}" 2> /dev/null)
    if (( ${#found} )); then
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


def _script(options: CompletionOptions) -> Output:
    return Output(raw=_SCRIPTS[options.shell].encode())


class CompleteOptions(msgspec.Struct, frozen=True):
    """Options of ``complete``: the command line up to the cursor."""

    settings: Settings
    line: str


def _complete(options: CompleteOptions) -> Output:
    lines = [f"{word}\t{one_line(help, 100)}\n" for word, help in candidates(options.line)]
    return Output(raw="".join(lines).encode("utf-8", "surrogateescape"))


def candidates(line: str) -> list[Candidate]:
    """Candidates for the last word of ``line``, which begins with the program's name. Empty where only a file can
    follow, and for a line that cannot be understood."""
    found: set[Candidate] = set()
    try:
        found.update(_candidates(line))  # those before an error stay
    except (StatelineError, OSError, ValueError, KeyError):
        pass
    return sorted(found)


def _candidates(line: str) -> Iterator[Candidate]:
    from stateline.cli.app import COMMANDS

    words = _split(line)[1:]
    last = words.pop() if words and not line[-1:].isspace() else ""
    prefix = ""
    if last.startswith("--") and "=" in last:
        prefix, _, last = last.partition("=")
        words.append(prefix)
        prefix += "="
    node: Group | Entry = COMMANDS
    path = ["stateline"]
    parser = node.parser(path)
    option: Action | None = None
    arguments = 0
    state_dir = os.environ.get("STATELINE_STATE_DIR")
    for word in words:
        name, equals, value = word.partition("=")
        if option is not None:
            state_dir = word if option.dest == "state_dir" else state_dir
            option = None
        elif is_option(word):
            option = parser.option(word) if takes_value(parser.option(word)) else None
            state_dir = value if equals and name == "--state-dir" else state_dir
        elif isinstance(node, Group):
            node = node.commands[word]
            path.append(word)
            parser = node.parser(path)
        else:
            arguments += 1
    if option is None and last.startswith("-"):
        common = {argument.names[0]: str(argument.keywords["help"]) for argument in common_options(shown=True)}
        found = iter(
            [
                (name, common.get(action.option_strings[0], str(action.help)))
                for action in parser.declared
                for name in action.option_strings
            ]
        )
    elif option is None and isinstance(node, Group):
        found = iter(node.summaries())
    else:
        positionals = parser.positionals()
        # The last argument may take several words.
        more = positionals[-1:] if positionals and positionals[-1].nargs == "+" else []
        places = [option] if option is not None else positionals[arguments : arguments + 1] or more
        found = _values(str(places[0].metavar), Settings(state_dir=state_dir)) if places else iter(())
    for word, help in found:
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


def _values(kind: str, settings: Settings) -> Iterator[Candidate]:
    """Values of an option or argument, by the word for them in its help. A scope whose key needs quotes is left out: a
    key may hold any printable character, other users may have written the store, and bash inserts words unquoted."""
    from stateline.bundle.naming import is_id

    if "|" in kind and kind.replace("|", "").islower():
        yield from ((word, "") for word in kind.split("|"))
    if kind not in _PREFIXES:
        return
    prefix = _PREFIXES[kind]
    for head in islice(settings.store().heads(), _MOST_SCOPES):
        key = head.envelope.scope
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and shlex.quote(key) == key and (not prefix or is_id(name)):
            yield name, ""


_PREFIXES = {"NAME": "context:", "RUN": "run:", "REV": "", "OLD": "", "NEW": "", "KEY": ""}
"""The beginning of the scopes that an option or argument names, which is not part of its value."""

COMPLETION = Command(
    help="""Print the script that completes commands and names in a shell.

bash: eval "$(stateline completion bash)" in ~/.bashrc. zsh: eval "$(stateline completion zsh)" in ~/.zshrc, after
compinit. fish: stateline completion fish | source, in ~/.config/fish/config.fish.""",
    arguments=[argument("shell", metavar="bash|zsh|fish", choices=tuple(_SCRIPTS), help="The shell.")],
    options=fields_of(CompletionOptions),
    run=_script,
)
COMPLETE = Command(
    help="Print the candidates for the last word of a command line, for the scripts of `completion`.",
    arguments=[argument("line", metavar="LINE", help="The command line up to the cursor.")],
    options=fields_of(CompleteOptions),
    run=_complete,
)
