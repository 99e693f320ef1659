"""Unknown commands and options: the hint names a similar one."""

from __future__ import annotations

from command_line import Cli
from each_case import Failures


def test_a_command_of_another_place_is_named_with_that_place(cli: Cli) -> None:
    failures = Failures()
    for words, meant in [
        (["list"], "stateline exec list"),
        (["ls"], "stateline exec list"),
        (["history", "r1"], "stateline exec history"),
        (["histroy"], "stateline exec history"),
        (["resume", "r1", "--retry"], "stateline exec resume"),
        (["check", "m.yaml"], "stateline machine check"),
        (["exec", "log", "x"], "stateline log"),
        (["version"], "stateline --version"),
        (["exec", "run", "-p", "x"], "stateline run"),
        (["machine", "execute", "m.yaml"], "stateline execute"),
    ]:
        with failures.case(words, meant), cli.fresh():
            error = cli.refused(*words, exits=64)
            assert error["code"] == "usage"
            assert f"`{meant}`" in error["hint"]
    failures.check()


def test_what_is_no_command_elsewhere_only_points_to_the_help(cli: Cli) -> None:
    failures = Failures()
    for words in [["zzz"], ["exec", "zzz"]]:
        with failures.case(words), cli.fresh():
            hint = cli.refused(*words, exits=64)["hint"]
            assert hint == f"`{' '.join(['stateline', *words[:-1]])} --help` lists the commands"
    failures.check()


def test_an_option_with_one_dash_is_answered_with_the_one_with_two(cli: Cli) -> None:
    failures = Failures()
    for words, meant in [
        (["run", "-prompt", "Hello."], "'--prompt'"),
        (["run", "-prompt=Hello."], "'--prompt'"),
        (["execute", "m.yaml", "-lable", "a=b"], "'--label'"),
        (["run", "-p", "x", "-state-refine", "Be brief."], "'--refine-text'"),
        (["run", "-p", "x", "-state-scope", "demo"], "'--state-scope'"),
        (["execute", "m.yaml", "-accept-change"], "'--accept-change'"),
        (["execute", "m.yaml", "-id", "x"], "'--id'"),
        (["-state-dir", "x", "exec", "list"], "'--state-dir'"),
        (["exec", "list", "-format=json"], "'--format'"),
    ]:
        with failures.case(words), cli.fresh():
            error = cli.refused(*words, "--format", "json", exits=64)
            assert error["message"].endswith(f"did you mean {meant}?")
            assert not cli.state.exists()
    with failures.case("letters"), cli.fresh():
        assert cli("exec", "list", "-vq").code == 0
        assert cli("run", "-qpHello.", "--no-input").code == 3
    failures.check()


def test_a_machine_file_given_to_run_is_answered_with_execute(cli: Cli) -> None:
    (cli.home / "ask.txt").write_text("What now?")
    cli.monkeypatch.chdir(cli.home)
    failures = Failures()
    for words, command in [
        (["run", "m.yaml"], "stateline execute m.yaml"),
        (["run", "my machine.py"], "stateline execute 'my machine.py'"),
        (["m.toml"], "stateline execute m.toml"),
        (["run", "ask.txt"], "stateline run --prompt-file ask.txt"),
        (["run", "What now?"], "stateline run -p 'What now?'"),
    ]:
        with failures.case(words):
            assert f"`{command}`" in cli.refused(*words, exits=64)["hint"]
    failures.check()


def test_a_hidden_command_is_never_offered(cli: Cli) -> None:
    assert "`stateline complete`" not in cli.refused("exec", "complet", exits=64)["hint"]


def test_an_option_that_is_almost_one_is_shown_with_the_one_that_there_is(cli: Cli) -> None:
    failures = Failures()
    for words, near in [
        (["run", "--promt", "x"], "--prompt"),
        (["run", "--modl", "x"], "--model"),
        (["execute", "m.yaml", "--dryrun"], "--dry-run"),
        (["exec", "history", "--verbos"], "--verbose"),
    ]:
        with failures.case(words, near), cli.fresh():
            assert near in cli.refused(*words, exits=64)["message"]
    failures.check()
