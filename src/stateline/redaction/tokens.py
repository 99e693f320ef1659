"""Formats of tokens that can be told by themselves: a prefix that somebody chose for it, and what follows it.

A format is found by a literal at C speed (its *needles*), and only there a pattern is tried. Patterns are compiled
when they are first needed. None of them guesses from how random something looks; each asks for more characters after
the prefix than ordinary names have, and for none in front of it that could make it the end of a word. What stands
escaped in front (``\\n`` in JSON, ``%20`` in a URL, the end of a terminal's colour) is no part of a word.

Every pattern is linear: what repeats without a bound is taken whole or, where something has to follow, cannot be
entered again from its inside.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from string import ascii_lowercase
from typing import Protocol

import msgspec

# Each begins with what is in no token, so that a row of them is no run that would be read from many beginnings.
_COLOUR = "|".join(rf"(?<=\[[0-9;]{{{digits}}}m)" for digits in range(20))
_ESCAPED = (
    r"(?<=\\[bfnrtv])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\x[0-9A-Fa-f]{2})|(?<=%[0-9A-Fa-f]{2})"
    rf"|(?<=m)(?:{_COLOUR})"
)
_WORD = rf"(?:(?<![A-Za-z0-9])|{_ESCAPED})"
# For short prefixes: in a long text of the URL-safe base64 alphabet they would be found behind a "-" or "_" by chance.
_STRICT = rf"(?:(?<![A-Za-z0-9_-])|{_ESCAPED})"
_ANY = "[A-Za-z0-9_-]"

RUN = 16
"""Behind the sign of its needle (:data:`SIGNS`) every token of :data:`TOKENS` has this many letters, digits, ``-`` and
``_`` at least, unless the needle begins with the sign."""
SIGNS = "%_-./JA"
"""Characters of needles, the rarest kinds of texts first. The first of them that a needle has, where it first has it,
is what :mod:`~stateline.redaction.prefilter` look for."""


class SecretPattern(Protocol):
    """Finds one kind of secret, named ``name`` in messages; one of ``needles`` is in every text that has any."""

    name: str
    needles: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Whether there may be one in the strings of a value whose JSON text is ``text``: quotes, backslashes and line
        ends are escaped there, and what is refused counts where it may not be what stands in a string or between masks.
        """

    def spans(self, text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Where the secrets of this kind stand in ``text[first:last]``."""


class Format:
    """One kind of secret: literals to look for, the pattern that begins where they do, and what else must hold.

    What is masked is the pattern's group, or all of it without one. ``holds`` refuses matches; ``inside`` says that
    another one may begin inside what was refused.
    """

    def __init__(
        self,
        name: str,
        needles: tuple[str, ...],
        pattern: str,
        *,
        holds: Callable[[re.Match[str]], bool] | None = None,
        inside: bool = False,
    ) -> None:
        self.name = name
        self.needles = needles
        self._source = pattern
        self._holds = holds
        self._inside = inside

    def spans(self, text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        for needle in self.needles:
            at = text.find(needle, first, last)
            while at >= 0:
                found = self.pattern.match(text, at, last)
                after = at + 1
                if found:
                    held = self._holds is None or self._holds(found)
                    if held:
                        yield found.span(found.lastindex or 0)
                    if held or not self._inside:
                        after = found.end()
                at = text.find(needle, after, last)

    def matches(self, text: str) -> bool:
        for needle in self.needles:
            at = text.find(needle)
            while at >= 0:
                found = self.pattern.match(text, at)
                after = at + 1
                if found:
                    if self._holds is None or self._holds(found):
                        return True
                    if not self._inside:
                        if any(sign in found[0] for sign in ('"', "\\", "[REDACTED")):
                            return True
                        after = found.end()
                at = text.find(needle, after)
        return False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._source)


def _names_an_algorithm(found: re.Match[str]) -> bool:
    """Whether a JSON Web Token's header (RFC 7515, 7516) is one."""
    head = found[0].partition(".")[0]
    try:
        header = msgspec.json.decode(binascii.a2b_base64(head.translate(_TO_STANDARD) + "=" * (-len(head) % 4)))
    except (ValueError, msgspec.MsgspecError):
        return False
    return isinstance(header, dict) and "alg" in header


_TO_STANDARD = str.maketrans("-_", "+/")


# What is glued to a token goes with it: a suffix of somebody's own, or the next token.
_REST = rf"{_ANY}*+(?:\.{_ANY}{{20,}}+)*+"


def _row(name: str, needles: str, body: str, left: str = _WORD) -> Format:
    """``needles`` are apart by white space."""
    return Format(name, tuple(needles.split()), left + body + _REST)


TOKENS = (
    # Also of those who took over the prefix: DeepSeek, OpenRouter (`sk-or-v1-`), Langfuse, LiteLLM and others.
    _row(
        "OpenAI or Anthropic key",
        "sk-",
        rf"sk-(?:(?:ant|proj|svcacct|admin|None|lf)-{_ANY}{{20,}}|(?:[a-z0-9]{{1,20}}-){{0,3}}[A-Za-z0-9]{{20,}}{_ANY}*)",
        _STRICT,
    ),
    _row("AWS access key id", "AKIA ASIA", r"(?:AKIA|ASIA)[A-Z0-9]{16,}"),
    # The newer ones of apps are a number and a JSON Web Token.
    _row(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_",
        rf"gh[pousr]_(?:[A-Za-z0-9]{{30,}}|[0-9]{{1,12}}_eyJ{_ANY}{{16,}}(?:\.{_ANY}+){{0,2}})",
    ),
    _row("GitHub token", "github_pat_", r"github_pat_[A-Za-z0-9]{20,}[A-Za-z0-9_]*"),
    _row(
        "GitLab token",
        "glpat- gldt- glrt- glptt- glcbt- glft- glimt- glagent- gloas- glsoat-",
        rf"gl(?:pat|dt|rt|ptt|cbt|ft|imt|agent|oas|soat)-{_ANY}{{20,}}(?:\.[0-9a-z]{{2}}\.[0-9a-z]{{7,9}})?",
    ),
    _row("Slack token", " ".join(f"xox{letter}-" for letter in ascii_lowercase), r"xox[a-z]-[A-Za-z0-9-]{16,}"),
    _row("Slack token", "xapp-", r"xapp-[0-9]-[A-Za-z0-9-]{16,}"),
    _row("Google API key", "AIza", rf"AIza{_ANY}{{35,}}"),
    _row("Google access token", "ya29.", rf"ya29\.{_ANY}{{20,}}(?:\.{_ANY}+)*"),
    _row("Google client secret", "GOCSPX-", rf"GOCSPX-{_ANY}{{20,}}"),
    _row(
        "Google refresh token",
        r"//0 \/0 %2F0 %2f0",
        rf"(?:(?<=1)//|(?<=[/\\])\\/|(?<=1%2[Ff])%2[Ff])(0{_ANY}{{30,}}+{_REST})",
        "",
    ),
    _row("Hugging Face token", "hf_", r"hf_[A-Za-z0-9]{30,}", _STRICT),
    _row("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    _row("webhook secret", "whsec_", r"whsec_[A-Za-z0-9]{20,}[A-Za-z0-9+/=]*"),
    _row("npm token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    _row("PyPI token", "pypi-AgE", rf"pypi-AgE{_ANY}{{30,}}"),
    _row("SendGrid key", "SG.", rf"SG\.{_ANY}{{20,}}\.{_ANY}{{20,}}"),
    # The number in front is the bot's public id.
    _row(
        "Telegram bot token",
        ":AA %3AAA %3aAA",
        rf"(?:(?<=[0-9]{{8}}):|(?<=[0-9]{{8}})%3[Aa])(AA{_ANY}{{32,}}+{_REST})",
        "",
    ),
    _row("Groq key", "gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    _row("xAI key", "xai-", r"xai-[A-Za-z0-9]{40,}"),
    _row("Perplexity key", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    _row("NVIDIA key", "nvapi-", rf"nvapi-{_ANY}{{40,}}"),
    _row("Replicate token", "r8_", r"r8_[A-Za-z0-9]{30,}", _STRICT),
    _row("Tavily key", "tvly-", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}"),
    _row("LangSmith key", "lsv2_", r"lsv2_(?:pt|sk)_[0-9a-f]{20,}[0-9a-f_]*"),
    _row("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{40,}"),
    _row("Databricks token", "dapi", r"dapi[0-9a-f]{32,}"),
    _row("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32,}"),
    _row("Docker Hub token", "dckr_", rf"dckr_(?:pat|oat)_{_ANY}{{20,}}"),
    _row("Vault token", "hvs. hvb. hvr.", rf"hv[sbr]\.{_ANY}{{24,}}"),
    _row("Grafana token", "glsa_", r"glsa_[A-Za-z0-9]{30,}[A-Za-z0-9_]*"),
    _row("Linear key", "lin_api_", r"lin_api_[A-Za-z0-9]{30,}"),
    _row("Atlassian token", "ATATT3", rf"ATATT3{_ANY}{{40,}}=*[0-9A-F]*"),
    _row("Postman key", "PMAK-", r"PMAK-[0-9a-f]{20,}[0-9a-f-]*"),
    _row("New Relic key", "NRAK-", r"NRAK-[A-Z0-9]{20,}"),
    _row("RubyGems key", "rubygems_", r"rubygems_[0-9a-f]{40,}"),
    _row("Supabase token", "sbp_", r"sbp_[0-9a-f]{40,}"),
    _row("age key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}"),
    # Three parts when signed (JWS), five when encrypted (JWE).
    Format(
        "JSON Web Token",
        ("eyJ",),
        rf"{_STRICT}eyJ{_ANY}{{17,}}+\.{_ANY}*+\.{_ANY}*+(?:\.{_ANY}++\.{_ANY}++)?",
        holds=_names_an_algorithm,
        inside=True,
    ),
)
"""What has a prefix of its own."""
