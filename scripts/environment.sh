# Sourced by the scripts beside it. Makes .venv in the checkout when it is missing, outdated or was moved, and puts it
# first on PATH. Sets `checkout`. Writes nothing outside the checkout (pip's own cache apart).
#
# Works with bash 3.2, the one that macOS ships. The second time it costs one start of Python: what .venv was made
# from is kept in .venv/stateline-stamp as plain text and compared.

unset CDPATH PYTHONPATH PYTHONHOME
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 1
venv=$checkout/.venv
stamp=$venv/stateline-stamp
lock=$checkout/.venv.lock
setup_log=$checkout/.venv/setup.log

say() { printf '%s\n' "$*" >&2; }

# What .venv must have been made from: this Python, this place, this pyproject.toml.
base_of_stamp() {
    "$venv/bin/python" -c 'import sys; print(sys.version.replace("\n", " "))' 2>/dev/null && printf '%s\n' "$checkout"
}

is_current() {
    local base
    [ -f "$stamp" ] && base=$(base_of_stamp) && [ "$(cat "$stamp")" = "$base
$(cat "$checkout/pyproject.toml")" ]
}

# .venv is usable and only pyproject.toml changed: installing again is enough.
is_in_place() {
    local base
    [ -f "$venv/stateline-base" ] && base=$(base_of_stamp) && [ "$(cat "$venv/stateline-base")" = "$base" ]
}

find_python() {
    local name found=
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        command -v "$name" >/dev/null 2>&1 || continue
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
        [ -n "$found" ] || found=$name
    done
    if [ -z "$found" ]; then
        say "Python 3.11 or later was not found on PATH (tried python3 and python3.11 to python3.14); nothing was changed."
        say "Install it and try again. Debian: apt-get install python3 python3-venv; macOS: brew install python@3.13"
    else
        say "$(command -v "$found") cannot make virtual environments: its venv module is incomplete; nothing was changed."
        if [ -e /etc/debian_version ] && [ "$found" = python3 ]; then
            say "As root: apt-get install python3-venv"
        elif [ -e /etc/debian_version ]; then
            say "As root: apt-get install $found-venv"
        else
            say "Install the rest of that Python (the modules venv and ensurepip), or another one from 3.11 on."
        fi
    fi
    return 1
}

# One set-up at a time. A directory is the lock, since mkdir is atomic everywhere; it names its owner, so that one left
# by a killed set-up is told from one that is held.
take_lock() {
    local owner refused=0 told=
    while ! mkdir "$lock" 2>/dev/null; do
        if [ ! -d "$lock" ]; then
            # Released just now, or not allowed: a second look tells which.
            refused=$((refused + 1))
            [ "$refused" -lt 3 ] && continue
            say "Cannot write to $checkout: the set-up needs to make .venv there. Nothing was changed."
            mkdir "$lock"
            return 1
        fi
        refused=0
        owner=$(cat "$lock/owner" 2>/dev/null)
        if [ -n "$owner" ] && LC_ALL=C kill -0 "$owner" 2>&1 | grep -q 'No such process'; then
            say "Removing the lock of a set-up that was killed (process $owner)."
            # Renamed first: of two that find it only one may remove it, and never a lock that was taken since.
            if mv "$lock" "$lock.$$" 2>/dev/null; then
                if [ "$(cat "$lock.$$/owner" 2>/dev/null)" = "$owner" ]; then
                    rm -rf "$lock.$$"
                else
                    mv "$lock.$$" "$lock"
                fi
            fi
            continue
        fi
        [ -n "$told" ] || say "Waiting for another set-up of this checkout (if there is none, remove $lock) ..."
        told=yes
        sleep 1
    done
    printf '%s\n' "$1" >"$lock/owner"
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check install --editable "$checkout[dev]" >"$setup_log" 2>&1 && return
    say "pip could not install the project; its output:"
    cat "$setup_log" >&2
    return 1
}

make_venv() {
    local python
    rm -f "$stamp"
    if is_in_place; then
        say "Updating .venv, since pyproject.toml changed ..."
    else
        python=$(find_python) || return 1
        say "Making .venv with $("$python" --version 2>&1) ($python) ..."
        rm -rf "$venv" && "$python" -m venv "$venv" || return 1
    fi
    say "Installing Stateline and the tools of development into .venv (about half a minute) ..."
    pip_install || return 1
    base_of_stamp >"$venv/stateline-base" || return 1
    # Last, so that a .venv whose making was interrupted is made again.
    { cat "$venv/stateline-base" "$checkout/pyproject.toml"; } >"$stamp.new" && mv "$stamp.new" "$stamp" || return 1
    say "Ready; the next time this takes no time."
}

if ! is_current; then
    # A subshell of its own, so that its traps do not replace those of the script that sources this file.
    (
        # $$ is the script's process, which lives as long as this subshell and longer.
        take_lock "$$" || exit 1
        trap 'rm -rf "$lock"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        is_current || make_venv
    ) || exit 1
fi
PATH=$venv/bin:$PATH
export PATH
