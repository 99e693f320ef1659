# Sourced by the other scripts. Creates .venv in the checkout when it is missing, outdated or moved, and puts it first on
# PATH. Sets `checkout` and `venv`. Writes nothing outside the checkout, apart from pip's cache.
# With python_version=3.13 set, it uses that Python and the directory .venv-3.13 instead.
#
# Works with bash 3.2, which macOS ships. The second time it costs one start of Python: the inputs of .venv are kept in
# .venv/stateline-stamp as plain text and compared.

unset CDPATH PYTHONPATH PYTHONHOME
python_version=${python_version:-}
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 1
venv=$checkout/.venv${python_version:+-$python_version}
stamp=$venv/stateline-stamp
lock=$venv.lock
setup_log=$venv/setup.log

say() { printf '%s\n' "$*" >&2; }

# The inputs of .venv: this Python, this directory, this pyproject.toml.
base_of_stamp() {
    "$venv/bin/python" -c 'import sys; print(sys.version.replace("\n", " "))' 2>/dev/null && printf '%s\n' "$checkout"
}

is_current() {
    local base
    [ -f "$stamp" ] && base=$(base_of_stamp) && [ "$(cat "$stamp")" = "$base
$(cat "$checkout/pyproject.toml")" ]
}

# Only pyproject.toml changed: installing again is enough.
is_in_place() {
    local base
    [ -f "$venv/stateline-base" ] && base=$(base_of_stamp) && [ "$(cat "$venv/stateline-base")" = "$base" ]
}

find_python() {
    local name found=
    for name in ${python_version:+python$python_version} python3 python3.14 python3.13 python3.12 python3.11; do
        [ -z "$python_version" ] || [ "$name" = "python$python_version" ] || continue
        command -v "$name" >/dev/null 2>&1 || continue
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
        [ -n "$found" ] || found=$name
    done
    if [ -z "$found" ] && [ -n "$python_version" ]; then
        say "python$python_version was not found on PATH; nothing was changed."
    elif [ -z "$found" ]; then
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

# One set-up at a time. The lock is a directory, because mkdir is atomic everywhere. It names its owner, so that a lock
# left by a killed set-up can be recognized.
take_lock() {
    local owner refused=0 reported=
    while ! mkdir "$lock" 2>/dev/null; do
        if [ ! -d "$lock" ]; then
            # Released just now, or not allowed: try again to find out.
            refused=$((refused + 1))
            [ "$refused" -lt 3 ] && continue
            say "Cannot write to $checkout, where the set-up creates .venv. Nothing was changed."
            mkdir "$lock"
            return 1
        fi
        refused=0
        owner=$(cat "$lock/owner" 2>/dev/null)
        if [ -n "$owner" ] && LC_ALL=C kill -0 "$owner" 2>&1 | grep -q 'No such process'; then
            say "Removing the lock of a set-up that was killed (process $owner)."
            # Rename first: only one of two processes that find it may remove it, and never a lock taken since.
            if mv "$lock" "$lock.$$" 2>/dev/null; then
                if [ "$(cat "$lock.$$/owner" 2>/dev/null)" = "$owner" ]; then
                    rm -rf "$lock.$$"
                else
                    mv "$lock.$$" "$lock"
                fi
            fi
            continue
        fi
        [ -n "$reported" ] || say "Waiting for another set-up of this checkout (if none is running, remove $lock) ..."
        reported=yes
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
        say "Updating $(basename "$venv"): pyproject.toml changed ..."
    else
        python=$(find_python) || return 1
        say "Creating $(basename "$venv") with $("$python" --version 2>&1) ($python) ..."
        rm -rf "$venv" && "$python" -m venv "$venv" || return 1
    fi
    say "Installing Stateline and its development tools (about half a minute) ..."
    pip_install || return 1
    base_of_stamp >"$venv/stateline-base" || return 1
    # Written last, so that an interrupted set-up is repeated.
    { cat "$venv/stateline-base" "$checkout/pyproject.toml"; } >"$stamp.new" && mv "$stamp.new" "$stamp" || return 1
    say "Ready. The next time this step is skipped."
}

if ! is_current; then
    # A subshell, so that its traps do not replace those of the script that sources this file.
    (
        # $$ is the script's process, which outlives this subshell.
        take_lock "$$" || exit 1
        trap 'rm -rf "$lock"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        is_current || make_venv
    ) || exit 1
fi
PATH=$venv/bin:$PATH
export PATH
