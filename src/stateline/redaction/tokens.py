"""Formats of tokens with a prefix that their issuer chose, and the classes of all patterns.

A pattern is searched for by a literal at C speed (its *needles*); the regular expression is tried only there, and
compiled when it is first needed. No pattern measures randomness: each requires more characters after the prefix than
ordinary names have, and no character in front that would make the prefix the end of a word. Escapes in front (``\\n``
in JSON, ``%20`` in a URL, the end of a terminal's colour) are not part of a word.

Every expression takes linear time: an unbounded repetition is possessive or, where something has to follow, cannot be
entered again from its inside.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from string import ascii_lowercase

import msgspec

# Each begins with a character that no token has, so that a row of them is not read from many beginnings.
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
"""Fewest letters, digits, ``-`` and ``_`` that every token of :data:`TOKENS` has behind the sign of its needle
(:data:`SIGNS`), unless the needle begins with the sign."""
SIGNS = "%_-./JA"
"""Characters of needles, the rarest first. :mod:`~stateline.redaction.prefilter` searches for the first of them that a
needle has, at its first place in the needle."""


class RegexPattern:
    """One kind of secret: ``name`` in messages, ``needles`` (literals to search for), the expression that begins where
    they do, and a check of its match.

    The expression's group is masked, or all of it without one. ``accepts`` checks a match; ``nested`` tells that
    another match may begin inside a rejected one.
    """

    def __init__(
        self,
        name: str,
        needles: tuple[str, ...],
        pattern: str,
        *,
        accepts: Callable[[re.Match[str]], bool] | None = None,
        nested: bool = False,
    ) -> None:
        self.name = name
        self.needles = needles
        self._source = pattern
        self._accepts = accepts
        self._nested = nested

    def spans(self, text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the secrets of this kind in ``text[first:last]``."""
        return (found.span(found.lastindex or 0) for found, accepted in self._matches(text, first, last) if accepted)

    def may_match(self, text: str) -> bool:
        """Return true if a string of a value may hold one; ``text`` is the JSON text of the value. Quotes, backslashes
        and line ends are escaped there, so a match that is rejected counts if it may be cut differently in a string or
        between masks."""
        return any(
            accepted or (not self._nested and any(sign in found[0] for sign in ('"', "\\", "[REDACTED")))
            for found, accepted in self._matches(text, 0, len(text))
        )

    def _matches(self, text: str, first: int, last: int) -> Iterator[tuple[re.Match[str], bool]]:
        """Yield each match of the expression, and true if the check accepts it."""
        for needle in self.needles:
            at = text.find(needle, first, last)
            while at >= 0:
                found = self.pattern.match(text, at, last)
                after = at + 1
                if found:
                    accepted = self._accepts is None or self._accepts(found)
                    yield found, accepted
                    if accepted or not self._nested:
                        after = found.end()
                at = text.find(needle, after, last)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._source)


def _has_algorithm(found: re.Match[str]) -> bool:
    """Check the header of a JSON Web Token (RFC 7515, 7516)."""
    head = found[0].partition(".")[0]
    try:
        header = msgspec.json.decode(binascii.a2b_base64(head.translate(_TO_STANDARD) + "=" * (-len(head) % 4)))
    except (ValueError, msgspec.MsgspecError):
        return False
    return isinstance(header, dict) and "alg" in header


_TO_STANDARD = str.maketrans("-_", "+/")


# Characters glued to a token are masked with it: a custom suffix, or the next token.
_REST = rf"{_ANY}*+(?>(?:\.{_ANY}{{20,}}+)*)"


def _token(name: str, needles: str, body: str, left: str = _WORD) -> RegexPattern:
    """``needles`` are separated by white space."""
    return RegexPattern(name, tuple(needles.split()), left + body + _REST)


TOKENS = (
    # Also keys of DeepSeek, OpenRouter (`sk-or-v1-`), Langfuse, LiteLLM and others, which took over the prefix.
    _token(
        "OpenAI or Anthropic key",
        "sk-",
        rf"sk-(?:(?:ant|proj|svcacct|admin|None|lf)-{_ANY}{{20,}}|(?:[a-z0-9]{{1,20}}-){{0,3}}[A-Za-z0-9]{{20,}}{_ANY}*)",
        _STRICT,
    ),
    _token("AWS access key id", "AKIA ASIA", r"(?:AKIA|ASIA)[A-Z0-9]{16,}"),
    # The newer tokens of apps are a number and a JSON Web Token.
    _token(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_",
        rf"gh[pousr]_(?:[A-Za-z0-9]{{30,}}|[0-9]{{1,12}}_eyJ{_ANY}{{16,}}(?:\.{_ANY}+){{0,2}})",
    ),
    _token("GitHub token", "github_pat_", r"github_pat_[A-Za-z0-9]{20,}[A-Za-z0-9_]*"),
    _token(
        "GitLab token",
        "glpat- gldt- glrt- glptt- glcbt- glft- glimt- glagent- gloas- glsoat-",
        rf"gl(?:pat|dt|rt|ptt|cbt|ft|imt|agent|oas|soat)-{_ANY}{{20,}}(?:\.[0-9a-z]{{2}}\.[0-9a-z]{{7,9}})?",
    ),
    _token("Slack token", " ".join(f"xox{letter}-" for letter in ascii_lowercase), r"xox[a-z]-[A-Za-z0-9-]{16,}"),
    _token("Slack token", "xapp-", r"xapp-[0-9]-[A-Za-z0-9-]{16,}"),
    _token("Google API key", "AIza", rf"AIza{_ANY}{{35,}}"),
    _token("Google access token", "ya29.", rf"ya29\.{_ANY}{{20,}}(?:\.{_ANY}+)*"),
    _token("Google client secret", "GOCSPX-", rf"GOCSPX-{_ANY}{{20,}}"),
    _token(
        "Google refresh token",
        r"//0 \/0 %2F0 %2f0",
        rf"(?:(?<=1)//|(?<=[/\\])\\/|(?<=1%2[Ff])%2[Ff])(0{_ANY}{{30,}}+{_REST})",
        "",
    ),
    _token("Hugging Face token", "hf_", r"hf_[A-Za-z0-9]{30,}", _STRICT),
    _token("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    _token("webhook secret", "whsec_", r"whsec_[A-Za-z0-9]{20,}[A-Za-z0-9+/=]*"),
    _token("npm token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    _token("PyPI token", "pypi-AgE", rf"pypi-AgE{_ANY}{{30,}}"),
    _token("SendGrid key", "SG.", rf"SG\.{_ANY}{{20,}}\.{_ANY}{{20,}}"),
    # The number in front is the bot's public id.
    _token(
        "Telegram bot token",
        ":AA %3AAA %3aAA",
        rf"(?:(?<=[0-9]{{8}}):|(?<=[0-9]{{8}})%3[Aa])(AA{_ANY}{{32,}}+{_REST})",
        "",
    ),
    _token("Groq key", "gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    _token("xAI key", "xai-", r"xai-[A-Za-z0-9]{40,}"),
    _token("Perplexity key", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    _token("NVIDIA key", "nvapi-", rf"nvapi-{_ANY}{{40,}}"),
    _token("Replicate token", "r8_", r"r8_[A-Za-z0-9]{30,}", _STRICT),
    _token("Tavily key", "tvly-", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}"),
    _token("LangSmith key", "lsv2_", r"lsv2_(?:pt|sk)_[0-9a-f]{20,}[0-9a-f_]*"),
    _token("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{40,}"),
    _token("Databricks token", "dapi", r"dapi[0-9a-f]{32,}"),
    _token("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32,}"),
    _token("Docker Hub token", "dckr_", rf"dckr_(?:pat|oat)_{_ANY}{{20,}}"),
    _token("Vault token", "hvs. hvb. hvr.", rf"hv[sbr]\.{_ANY}{{24,}}"),
    _token("Grafana token", "glsa_", r"glsa_[A-Za-z0-9]{30,}[A-Za-z0-9_]*"),
    _token("Linear key", "lin_api_", r"lin_api_[A-Za-z0-9]{30,}"),
    _token("Atlassian token", "ATATT3", rf"ATATT3{_ANY}{{40,}}=*[0-9A-F]*"),
    _token("Postman key", "PMAK-", r"PMAK-[0-9a-f]{20,}[0-9a-f-]*"),
    _token("New Relic key", "NRAK-", r"NRAK-[A-Z0-9]{20,}"),
    _token("RubyGems key", "rubygems_", r"rubygems_[0-9a-f]{40,}"),
    _token("Supabase token", "sbp_", r"sbp_[0-9a-f]{40,}"),
    _token("age key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}"),
    # Three parts when signed (JWS), five when encrypted (JWE).
    RegexPattern(
        "JSON Web Token",
        ("eyJ",),
        rf"{_STRICT}eyJ{_ANY}{{17,}}+\.{_ANY}*+\.{_ANY}*+(?:\.{_ANY}++\.{_ANY}++)?",
        accepts=_has_algorithm,
        nested=True,
    ),
)
"""All tokens with a prefix."""
