"""The options about models, which ``run``, ``execute`` and ``exec resume`` share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stateline.cli.options import Settings
from stateline.cli.output import at_the_end_of_typing, is_terminal, plain, type_out
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.service.model_setup import ModelOptions

Model = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", metavar="PROVIDER/NAME", help="The model to ask; manual: whoever calls [env: STATELINE_MODEL]."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="The endpoint of the model [env: STATELINE_BASE_URL]."),
]
Record = Annotated[
    str | None, typer.Option("--record", metavar="DIR", help="Write each exchange with a model there, redacted.")
]
Playback = Annotated[
    str | None, typer.Option("--playback", metavar="DIR", help="Answer from that recording; no model is called.")
]
PlaybackMode = Annotated[
    str | None,
    typer.Option(
        "--playback-mode", metavar="strict|sequential|hybrid", help="How requests find their replies [default: hybrid]."
    ),
]
InputFormat = Annotated[
    str,
    typer.Option(
        "--input-format",
        metavar="json|text",
        help="How an answer is read: as JSON, or as it is [default: json].",
        show_default=False,
    ),
]


def input_format(word: str) -> Literal["json", "text"]:
    """The word of ``--input-format``. Raises ``UsageError`` for any other."""
    if word == "json":
        return "json"
    if word == "text":
        return "text"
    raise UsageError(f"--input-format is {word!r}; it must be json or text", hint="nothing was done; correct it")


def model_options(
    said: Settings, asked: tuple[str | None, str | None], record: str | None, playback: str | None, mode: str | None
) -> ModelOptions:
    """What the flags of a call say about models; ``asked`` is the model and its base URL."""
    from stateline.service.model_setup import ModelOptions

    model, base_url = asked
    return ModelOptions(
        model=model,
        base_url=base_url,
        record=record,
        playback=playback,
        playback_mode=mode,
        on_text=_streamed(said),
    )


def again(model: str | None, base_url: str | None) -> str:
    """The flags that hold for their call only, as a shell's words with a blank in front; "" where there were none."""
    import shlex

    words = [] if model is None else ["-m", model]
    words += [] if base_url is None else ["--base-url", base_url]
    return plain("".join(f" {shlex.quote(word)}" for word in words))


def _streamed(said: Settings) -> Callable[[str], None] | None:
    """What hears a model's text while it comes: a terminal on stderr, unless that is to be quiet. Else None."""
    if said.quiet or not is_terminal(sys.stderr):
        return None

    from stateline.cli.masked_stream import Masked

    typed = Masked(type_out)
    at_the_end_of_typing(typed.end)
    return typed.hear
