"""``stateline run``: for now without a prompt, to derive and refine contexts."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.options import pairs, settings
from stateline.cli.output import emit, warn
from stateline.errors import UsageError


def run(
    ctx: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="ID", help="The model the context is for.")] = "",
    base_url: Annotated[str, typer.Option("--base-url", metavar="URL", help="The endpoint the context is for.")] = "",
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    developer: Annotated[
        list[str] | None, typer.Option("--developer", metavar="TEXT", help="A developer instruction (repeatable).")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; the value is JSON, else a string (repeatable)."),
    ] = None,
    refine_text: Annotated[
        str | None, typer.Option("--refine-text", metavar="TEXT", help="Refine: append this instruction.")
    ] = None,
    refine_file: Annotated[
        str | None, typer.Option("--refine-file", metavar="FILE", help="Refine: append this file's text.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; touch nothing.")] = False,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="REV", help="Only if this is the context's head (else exit 4).")
    ] = None,
) -> int:
    """Derive a context from the flags, or refine the one that is there, and stop.

    A context is prompts and settings that runs are given: execute --state-scope NAME hands the context NAME to its
    stages. Each change is a snapshot that names the one before it. Models, and prompts for them (-p), come in a later
    version.
    """
    from stateline.prestage.context import Wishes
    from stateline.service.contexts import ContextOptions, prepare

    said = settings(ctx)
    options = ContextOptions(
        name=said.state_scope,
        wishes=Wishes(
            model=model.strip(),
            base_url=base_url.strip(),
            system=system,
            developer=developer or [],
            settings=pairs(set, "--set", parsed=True),
            refine=_refinement(refine_text, refine_file),
        ),
        parent=parent,
        wait=said.wait,
    )
    if dry_run:
        from stateline.cli.plans import show_plan
        from stateline.service.plan import plan_context

        return show_plan(said, plan_context(said.store(), options))
    result = prepare(said.store(), options)
    if said.ephemeral:
        result.outcome.warnings.append("the context was not kept (--ephemeral)")
    warn(said, result.outcome.warnings)
    words = {"derive": "derived", "refine": "refined", "restore": "is there already, unchanged"}
    lines = [
        f"{result.scope} {words[result.outcome.reason]} (seq {result.seq})",
        f"  head:   {result.outcome.head}",
    ]
    emit(said, result.outcome.document(), lines)
    return 0


def _refinement(text: str | None, file: str | None) -> str | None:
    from stateline.prestage.context import LIMIT

    if text is not None and file is not None:
        raise UsageError("--refine-text and --refine-file exclude each other", hint="give one of them")
    if file is not None:
        try:
            with open(file, "rb") as source:
                data = source.read(LIMIT + 1)
                text = data.decode("utf-8", "ignore" if len(data) > LIMIT else "strict")  # cut; refused for its size
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {file!r}: {error}; nothing was saved", hint="a UTF-8 text file") from None
    if text is not None and not text.strip():
        raise UsageError("the refinement is empty; nothing was saved", hint="say what should change")
    return text
