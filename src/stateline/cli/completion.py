"""``stateline completion``, and what its scripts ask at each TAB. No other command loads this.

The words come from the application itself, so there is no second list. Where nothing is offered, the shell completes
names of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from shlex import quote
from typing import Annotated, Any

import typer

Candidate = tuple[str, str]
"""A word and its description."""
_MOST = 1000
"""Scopes that are looked into: each costs a read, and nobody chooses among more."""

BASH = r"""_stateline() {
    local line=${COMP_LINE:0:COMP_POINT} word said cut
    # bash breaks words at : and =, and puts what is chosen in the place of the last piece only.
    cut=${line##*[[:space:]]}
    case $cut in
        *[:=]*) cut=${cut%"${cut##*[:=]}"} ;;
        *) cut= ;;
    esac
    COMPREPLY=()
    while IFS=$'\t' read -r word said; do
        case $said in
            # Only names of files are quoted, and by the shell; an old one that cannot be told so completes them itself.
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
    local word said
    while IFS=$'\t' read -r word said; do
        case $said in
            'machine file' | directory) files+=("$word") ;;
            *) found+=("${word//:/\\:}:$said") ;;
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


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell to complete in.")],
) -> int:
    """Print the script by which a shell completes commands, options, machine files, runs and scopes.

    bash: eval "$(stateline completion bash)" in ~/.bashrc. zsh: eval "$(stateline completion zsh)" in ~/.zshrc, after
    compinit. fish: stateline completion fish | source, in ~/.config/fish/config.fish.
    """
    from stateline.cli.output import write
    from stateline.errors import UsageError

    if shell not in _SCRIPTS:
        raise UsageError(f"there is no completion for {shell!r}", hint=f"one of {', '.join(_SCRIPTS)}")
    write(_SCRIPTS[shell].encode())
    return 0


def complete(line: Annotated[str, typer.Argument(metavar="LINE", help="The command line up to the cursor.")]) -> int:
    """What may follow, one a line, with a tab before its description: what the scripts of `completion` ask."""
    from stateline.cli.output import one_line, write

    lines = [f"{word}\t{one_line(said, 100)}\n" for word, said in candidates(line)]
    write("".join(lines).encode("utf-8", "surrogateescape"))
    return 0


def candidates(line: str) -> list[Candidate]:
    """What may stand for the last word of ``line``, which begins with the command's own name. Empty where only a file
    can follow, and for whatever cannot be understood: a TAB is no place for an error."""
    from typer._click.exceptions import ClickException

    from stateline.errors import StatelineError

    found: set[Candidate] = set()
    try:
        found.update(_candidates(line))  # what came before an error stays
    except (ClickException, StatelineError, OSError, ValueError):
        pass
    return sorted(found)


def _candidates(line: str) -> Iterator[Candidate]:
    from typer._click import core, shell_completion

    from stateline.cli.app import application

    words = shell_completion.split_arg_string(line)[1:]
    last = words.pop() if words and not line[-1:].isspace() else ""
    ctx = shell_completion._resolve_context(application(), {}, "stateline", words)
    asked, begin = shell_completion._resolve_incomplete(ctx, words, last)
    before = last[: len(last) - len(begin)]  # `--option=`
    if isinstance(asked, core.Parameter):
        found = _values(ctx, str(asked.metavar or ""), begin)
    else:
        found = iter([(item.value, item.help or "") for item in asked.shell_complete(ctx, begin)])
    for word, said in found:
        if word.startswith(begin) and word.isprintable():
            yield before + word, said


def _values(ctx: Any, metavar: str, begin: str) -> Iterator[Candidate]:
    """Values for an argument or option, by the word that its help shows for them."""
    kind = metavar.strip("[].")
    if "|" in kind and kind.replace("|", "").islower():
        return iter([(word, "") for word in kind.split("|")])
    return _VALUES.get(kind, _nothing)(ctx, begin)


def _nothing(ctx: Any, begin: str) -> Iterator[Candidate]:
    return iter(())


def _machines(ctx: Any, begin: str) -> Iterator[Candidate]:
    """Machine files, and the directories that may lead to one."""
    from stateline.machine.definition.formats.reader import EXTENSIONS

    directory, _ = os.path.split(begin)
    with os.scandir(os.path.expanduser(directory) or ".") as entries:
        for entry in entries:
            hidden = entry.name.startswith(".") and not begin.rpartition("/")[2].startswith(".")
            name = os.path.join(directory, entry.name)
            if entry.is_dir() and not hidden:
                yield name + "/", "directory"
            elif entry.name.lower().endswith(EXTENSIONS) and not hidden:
                yield name, "machine file"


def _runs(ctx: Any, begin: str) -> Iterator[Candidate]:
    return _names(ctx, "run:")


def _contexts(ctx: Any, begin: str) -> Iterator[Candidate]:
    return _names(ctx, "context:")


def _names(ctx: Any, kind: str) -> Iterator[Candidate]:
    """The names of one kind of scopes, where they are ids: others may have written the store."""
    from stateline.bundle.naming import is_id

    for key, _ in _scopes(ctx, kind):
        if key.startswith(kind) and is_id(key[len(kind) :]):
            yield key[len(kind) :], ""


def _scopes(ctx: Any, begin: str) -> Iterator[Candidate]:
    """Keys of scopes that no shell reads anything into: they may hold whatever can be printed, and bash puts a word
    into the line as it is."""
    for head in islice(_settings(ctx).store().heads(), _MOST):
        key = head.envelope.scope
        if quote(key) == key:
            yield key, ""


def _settings(ctx: Any) -> Any:
    """The common options that stand on the line so far."""
    from stateline.cli.options import Settings

    said: dict[str, Any] = {}
    while ctx is not None:
        said = {name: value for name, value in ctx.params.items() if value is not None} | said
        ctx = ctx.parent
    directory = said.get("state_dir") or os.environ.get("STATELINE_STATE_DIR")
    return Settings(state_dir=directory)


_VALUES: dict[str, Callable[[Any, str], Iterator[Candidate]]] = {
    "MACHINE": _machines,
    "NAME": _contexts,
    "RUN": _runs,
    "REV": _scopes,
    "KEY": _scopes,
}
