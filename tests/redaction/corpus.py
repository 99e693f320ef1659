"""The corpus of redaction: kinds of secrets, carriers to put them in, and ordinary texts that must stay as they are.

Secrets are made from a seed while the tests run, so that none lies in a file. A kind gives a text and the part of it
that must not survive; what stands around that part may.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits

Kind = Callable[[random.Random], tuple[str, str]]


def some(rng: random.Random, alphabet: str, length: int) -> str:
    """Return random characters; the first and the last are letters or digits, since people cut off a final "-"."""
    inner = "".join(rng.choices(alphabet, k=length - 2))
    ends = [character for character in alphabet if character.isalnum()]
    return rng.choice(ends) + inner + rng.choice(ends)


def token(prefix: str, alphabet: str, length: int, middle: str = "", after: int = 0, end: str = "") -> Kind:
    def make(rng: random.Random) -> tuple[str, str]:
        body = some(rng, alphabet, length)
        if middle:
            body += middle + some(rng, alphabet, after)
        return prefix + body + end, body

    return make


def around(before: str, inner: Kind, after: str = "") -> Kind:
    """Put a secret in its context: ``inner`` must be masked."""

    def make(rng: random.Random) -> tuple[str, str]:
        text, secret = inner(rng)
        return before + text + after, secret

    return make


def json_web_token(rng: random.Random) -> tuple[str, str]:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")

    algorithm = rng.choice(["HS256", "RS256", "ES384", "EdDSA", "none-at-all"])
    claims = {
        "sub": str(rng.randrange(10**9)),
        "name": some(rng, string.ascii_lowercase, 9),
        "iat": rng.randrange(2**31),
    }
    secret = some(rng, URLSAFE, 43)
    return f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims)}.{secret}", secret


def encrypted_web_token(rng: random.Random) -> tuple[str, str]:
    head = base64.urlsafe_b64encode(b'{"alg":"RSA-OAEP","enc":"A256GCM"}').decode().rstrip("=")
    parts = [some(rng, URLSAFE, length) for length in (86, 16, 40, 22)]
    return ".".join([head, *parts]), parts[2]


def basic(rng: random.Random) -> tuple[str, str]:
    pair = f"{some(rng, string.ascii_lowercase, 6)}:{some(rng, ALNUM + '!.+-', 14)}"
    encoded = base64.b64encode(pair.encode()).decode()
    return encoded, encoded.rstrip("=")


def pem(label: str, lines: int, *, headers: str = "", checksum: str = "") -> Kind:
    def make(rng: random.Random) -> tuple[str, str]:
        body = [some(rng, BASE64, 64) for _ in range(lines)] + [some(rng, BASE64, 22) + "=="]
        text = "\n".join([f"-----BEGIN {label}-----", *headers.splitlines(), *body, checksum, f"-----END {label}-----"])
        return text.replace("\n\n-----END", "\n-----END"), "\n".join(body)

    return make


def beginning(kind: Kind, lines: int) -> Kind:
    """Cut off the lines after the first ``lines``."""

    def make(rng: random.Random) -> tuple[str, str]:
        text = "\n".join(kind(rng)[0].split("\n")[:lines])
        return text, text.split("\n", 1)[1]

    return make


def end(kind: Kind, lines: int) -> Kind:
    """Cut off the lines before the last ``lines``."""

    def make(rng: random.Random) -> tuple[str, str]:
        text = "\n".join(kind(rng)[0].split("\n")[-lines:])
        return text, text.rsplit("\n", 1)[0]

    return make


RSA = pem("RSA PRIVATE KEY", 12)

# Recognised by their format: these may stand side by side without a separator.
TOKENS: dict[str, Kind] = {
    "OpenAI, old": token("sk-", ALNUM, 20, "T3Blbk" + "FJ", 20),
    "OpenAI, project": token("sk-proj-", URLSAFE, 74, "T3Blbk" + "FJ", 74),
    "OpenAI, service account": token("sk-svcacct-", URLSAFE, 58, "T3Blbk" + "FJ", 58),
    "OpenAI, admin": token("sk-admin-", URLSAFE, 58),
    "OpenAI, named service": token("sk-my-service-", ALNUM, 48),
    "DeepSeek": token("sk-", HEX, 32),
    "OpenRouter": token("sk-or-v1-", HEX, 64),
    "Langfuse": lambda rng: (lambda key: (f"sk-lf-{key}", key))(str(uuid.UUID(int=rng.getrandbits(128)))),
    "Anthropic": token("sk-ant-api03-", URLSAFE, 93, end="AA"),
    "Anthropic, admin": token("sk-ant-admin01-", URLSAFE, 93, end="AA"),
    "Anthropic, OAuth": token("sk-ant-oat01-", URLSAFE, 86, end="AA"),
    "AWS access key id": token("AKIA", UPPER, 16),
    "AWS temporary key id": token("ASIA", UPPER, 16),
    "GitHub, personal": token("ghp_", ALNUM, 36),
    "GitHub, OAuth": token("gho_", ALNUM, 36),
    "GitHub, user to server": token("ghu_", ALNUM, 36),
    "GitHub, server to server": token("ghs_", ALNUM, 36),
    "GitHub, refresh": token("ghr_", ALNUM, 76),
    "GitHub, fine-grained": token("github_pat_", ALNUM, 22, "_", 59),
    "GitLab, personal": token("glpat-", URLSAFE, 20),
    "GitLab, routable": token("glpat-", URLSAFE, 40, end=".01.0z1k2m3n4"),
    "GitLab, deploy": token("gldt-", URLSAFE, 20),
    "GitLab, runner": token("glrt-", URLSAFE, 20),
    "GitLab, trigger": token("glptt-", HEX, 40),
    "Slack, bot": token("xoxb-", string.digits, 12, "-", 12, "-" + "aB3dE5gH7jK9mN1pQ3sT5vX7"),
    "Slack, user": token("xoxp-", string.digits, 12, "-" + "5550123-", 32),
    "Slack, app": token("xapp-1-A0123456789-", string.digits, 13, "-", 64),
    "Google API key": token("AIza", URLSAFE, 35),
    "Google access token": token("ya29.", URLSAFE, 150),
    "Google client secret": token("GOCSPX-", URLSAFE, 28),
    "Google refresh token": token("1//0", URLSAFE, 100),
    "Hugging Face": token("hf_", string.ascii_letters, 34),
    "Stripe, live": token("sk_live_", ALNUM, 24),
    "Stripe, test": token("sk_test_", ALNUM, 99),
    "Stripe, restricted": token("rk_live_", ALNUM, 24),
    "Stripe, webhook": token("whsec_", ALNUM, 32),
    "npm": token("npm_", ALNUM, 36),
    "PyPI": token("pypi-" + "AgEIcHlwaS5vcmc", URLSAFE, 150),
    "SendGrid": token("SG.", URLSAFE, 22, ".", 43),
    "Telegram": token("1234567890:AA", URLSAFE, 33),
    "Groq": token("gsk_", ALNUM, 52),
    "xAI": token("xai-", ALNUM, 80),
    "Perplexity": token("pplx-", ALNUM, 48),
    "NVIDIA": token("nvapi-", URLSAFE, 64),
    "Replicate": token("r8_", ALNUM, 37),
    "Tavily": token("tvly-dev-", ALNUM, 32),
    "LangSmith": token("lsv2_pt_", HEX, 32, "_", 10),
    "DigitalOcean": token("dop_v1_", HEX, 64),
    "Databricks": token("dapi", HEX, 32),
    "Shopify": token("shpat_", HEX, 32),
    "Docker Hub": token("dckr_pat_", URLSAFE, 27),
    "Vault": token("hvs.", URLSAFE, 90),
    "Grafana": token("glsa_", ALNUM, 32, "_", 8),
    "Linear": token("lin_api_", ALNUM, 40),
    "Atlassian": token("ATATT3xFfGF0", URLSAFE, 180, end="=1A2B3C4D"),
    "Postman": token("PMAK-", HEX, 24, "-", 34),
    "New Relic": token("NRAK-", UPPER, 27),
    "RubyGems": token("rubygems_", HEX, 48),
    "Supabase": token("sbp_", HEX, 40),
    "age": token("AGE-SECRET-KEY-1", UPPER, 58),
    "JSON Web Token": json_web_token,
    "encrypted JSON Web Token": encrypted_web_token,
}

# Recognised by their context.
PLACED: dict[str, Kind] = {
    "Authorization: Bearer": around("Authorization: Bearer ", token("", URLSAFE, 40)),
    "Authorization: Bearer, short": around("Authorization: Bearer ", token("x9", ALNUM, 10)),
    "authorization: bearer, in small letters": around("authorization: bearer ", token("", HEX, 32)),
    "Authorization: Token": around("Authorization: Token ", token("7", HEX, 40)),
    "Authorization: Token token": around("Authorization: Token token=", token("7", HEX, 40)),
    "Authorization: Basic": around("Authorization: Basic ", basic),
    "Proxy-Authorization": around("Proxy-Authorization: Basic ", basic),
    "AUTHORIZATION": around("HTTP_AUTHORIZATION=Bearer ", token("", URLSAFE, 40)),
    "Authorization without a scheme": around("Authorization: ", token("a1", ALNUM, 40)),
    "Bearer alone": around("Bearer ", token("a1", URLSAFE, 40)),
    "Basic alone": around("Basic ", basic),
    "Cookie": around("Cookie: theme=dark; session=", token("4", URLSAFE, 32), "; lang=en"),
    "Set-Cookie": around("Set-Cookie: sid=", token("4", HEX, 32), "; Path=/; HttpOnly"),
    "AWS secret key, credentials file": around("aws_secret_access_key = ", token("", BASE64, 40)),
    "AWS secret key, environment": around("AWS_SECRET_ACCESS_KEY=", token("", BASE64, 40)),
    "AWS secret key, answer of STS": around("SecretAccessKey: ", token("", BASE64, 40)),
    "Slack webhook": around("https://hooks.slack.com/services/T0123ABCD/B0456EFGH/", token("", ALNUM, 24)),
    "Discord webhook": around("https://discord.com/api/webhooks/123456789012345678/", token("", URLSAFE, 68)),
    "password in a URL": around("postgres://ann:", token("", ALNUM + "!*-._~", 14), "@db.example:5432/x"),
    "password in a URL without a user": around("redis://:", token("", ALNUM, 12), "@cache.example"),
    "parameter of a URL": around("https://h.example/v1?api_key=", token("a1", ALNUM, 30), "&page=2"),
    "second parameter of a URL": around("https://h.example/v1?page=2&access_token=", token("a1", ALNUM, 30)),
    "signed URL": around("https://b.example/o?X-Amz-Expires=60&X-Amz-Signature=", token("a1", HEX, 62)),
    "line of an env file, key": around("SOME_API_KEY=", token("a1", ALNUM, 30)),
    "line of an env file, password": around("DB_PASSWORD=", token("a1", ALNUM + "!*.", 12)),
    "line of an env file, token": around("DEPLOY_TOKEN=", token("a1", URLSAFE, 20)),
    "Azure connection string": around(
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=", token("", BASE64, 86, end="=="), ";EndpointSuffix=y"
    ),
    "private key, RSA": RSA,
    "private key, PKCS 8": pem("PRIVATE KEY", 24),
    "private key, elliptic curve": pem("EC PRIVATE KEY", 2),
    "private key, OpenSSH": pem("OPENSSH PRIVATE KEY", 6),
    "private key, encrypted": pem(
        "RSA PRIVATE KEY",
        12,
        headers="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,1A2B3C4D5E6F708192A3B4C5D6E7F809\n",
    ),
    "private key, PGP": pem("PGP PRIVATE KEY BLOCK", 20, headers="Version: GnuPG v2\n", checksum="=aB3d"),
    "private key, cut off at the end": beginning(RSA, 6),
    "private key, cut off at the beginning": end(RSA, 6),
}

KINDS = TOKENS | PLACED

CARRIERS: dict[str, Callable[[str], str]] = {
    "alone": lambda text: text,
    "in prose": lambda text: f"Please use {text} for this. It is new.",
    "at the end of a sentence": lambda text: f"It is {text}.",
    "on a line of its own": lambda text: f"first\n{text}\r\nlast\n",
    "behind a tab": lambda text: f"a\t{text}\tb",
    "in double quotes": lambda text: f'say "{text}" again',
    "in single quotes": lambda text: f"say '{text}' again",
    "in Markdown code": lambda text: f"say `{text}` again",
    "in a Markdown block": lambda text: f"```\n{text}\n```\n",
    "in a Markdown table": lambda text: f"| key | {text} |\n|---|---|\n",
    "in round brackets": lambda text: f"({text})",
    "in square brackets": lambda text: f"[{text}]",
    "in braces": lambda text: f"{{{text}}}",
    "in XML": lambda text: f"<value>{text}</value>",
    "in HTML": lambda text: f'<input value="{text}"/>',
    "behind an equals sign": lambda text: f"value={text}",
    "behind a colon": lambda text: f"value:{text}",
    "in YAML": lambda text: f"a:\n  value: {text}\n",
    "in an INI file": lambda text: f"[default]\nvalue = {text}\n",
    "in a shell line": lambda text: f"curl -sS -H '{text}' https://h.example/x | jq .",
    "in a shell line, double quotes": lambda text: f'curl -H "{text}" https://h.example/x',
    "in an env file": lambda text: f'A=1\nexport VALUE="{text}"\nB=2\n',
    "in a header": lambda text: f"GET / HTTP/1.1\r\nX-Value: {text}\r\n\r\n",
    "in JSON": lambda text: json.dumps({"note": text}),
    "in JSON inside JSON": lambda text: json.dumps({"body": json.dumps({"note": f"see\n{text}"})}),
    "in JSON, three deep": lambda text: json.dumps([json.dumps([json.dumps([text])])]),
    "in JSON of PHP": lambda text: json.dumps({"note": text}).replace("/", "\\/"),
    "behind an escaped line end": lambda text: f"first\\n{text}\\nlast",
    "behind an escape of Go": lambda text: f"a\\u003c{text}\\u003e",
    "in a Python dict": lambda text: repr({"note": text}),
    "in Python bytes": lambda text: repr({b"note": text.encode()}),
    "URL-quoted": lambda text: f"https://h.example/p?x={quote(text, safe='')}&y=1",
    "URL-quoted behind a line end": lambda text: quote(f"first\n{text}\nlast", safe=""),
    "in colour": lambda text: f"\x1b[32m{text}\x1b[0m",
    "in bright colour": lambda text: f"\x1b[1;31m{text}\x1b[m",
    "in escaped colour": lambda text: f"\\u001b[32m{text}\\u001b[0m",
    "between letters of another script": lambda text: f"ключ{text}ключ",
    "between signs of another script": lambda text: f"密钥\uff1a{text}。",
    "between emoji": lambda text: f"🔑{text}🔑",
    "behind a byte order mark": lambda text: f"\ufeff{text}",
    "in a log line": lambda text: f"2026-11-20T09:26:59.123Z WARN [http] sent ({text}) after 12 ms",
    "in a traceback": lambda text: f'  File "a.py", line 3, in f\nValueError: bad value: {text!r}\n',
    "in a diff": lambda text: "".join(f"+{line}\n" for line in text.split("\n")),
}
"""Texts around a secret. Each returns a text."""


# Ordinary texts.

WORDS = [
    "the", "run", "state", "snapshot", "chain", "head", "tool", "answer", "model", "prompt", "token", "secret",
    "password", "key", "value", "header", "cookie", "basic", "bearer", "authorization", "access", "file", "path",
    "error", "line", "test", "commit", "branch", "merge", "request", "response", "server", "client", "risk-free",
    "task-based", "desk-side", "disk-full", "mask-like",
]  # fmt: skip


def _prose(rng: random.Random) -> str:
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))).capitalize() for _ in range(rng.randint(1, 8))]
    return ". ".join(sentences) + "."


def _digests(rng: random.Random) -> str:
    data = rng.randbytes(16)
    return "\n".join(
        f"{hashlib.new(name, data).hexdigest()}  {rng.choice(WORDS)}.tar.gz"
        for name in ("md5", "sha1", "sha256", "sha512")
    )


def _integrity(rng: random.Random) -> str:
    digest = base64.b64encode(rng.randbytes(64)).decode()
    return f'"node_modules/{rng.choice(WORDS)}": {{"version": "1.2.3", "integrity": "sha512-{digest}"}}'


def _base64(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(rng.randint(100, 4000))).decode()


def _data_url(rng: random.Random) -> str:
    return f'<img src="data:image/png;base64,iVBORw0KGgo{_base64(rng)}"/>'


def _wrapped(rng: random.Random) -> str:
    return base64.encodebytes(rng.randbytes(600)).decode()


def _certificate(rng: random.Random) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{_wrapped(rng)}-----END CERTIFICATE-----\n"


def _public_key(rng: random.Random) -> str:
    pem = f"-----BEGIN PUBLIC KEY-----\n{_wrapped(rng)}-----END PUBLIC KEY-----"
    return f"ssh-rsa AAAAB3NzaC1yc2E{_base64(rng)} ann@host\n{pem}"


def _uuids(rng: random.Random) -> str:
    return ", ".join(str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(5))


def _paths(rng: random.Random) -> str:
    parts = [
        "usr",
        "lib",
        "python3.11",
        "site-packages",
        "sk-learn",
        "task-runner",
        "my_very_long_module_name_for_tests",
        "v1.2.3",
    ]
    return "\n".join("/" + "/".join(rng.choices(parts, k=rng.randint(3, 12))) + ".py" for _ in range(5))


def _git_log(rng: random.Random) -> str:
    return "".join(
        f"commit {rng.randbytes(20).hex()}\nAuthor: Ann <ann@host.example>\n"
        f"Date:   Fri Nov 20 09:26:59 2026 +0100\n\n    {_prose(rng)}\n\n"
        for _ in range(3)
    )


def _rules(rng: random.Random) -> str:
    return "\n".join(rng.choice("=-*_~#+") * rng.randint(3, 200) for _ in range(6))


def _table(rng: random.Random) -> str:
    row = "| " + " | ".join(rng.choices(WORDS, k=4)) + " |\n"
    return row + "|---|:---:|--:|:--|\n" + row * 3


def _minified(rng: random.Random) -> str:
    names = [f"{rng.choice('abcdef')}{rng.randint(0, 99)}" for _ in range(60)]
    script = "".join(f"function {name}(t,e){{return t.token=e.key,{name}&&t['password']}}" for name in names)
    style = "".join(f".sk-{name}-fading-circle .sk-circle{{-webkit-animation:sk-{name}-delay 1.2s}}" for name in names)
    return script + style


def _code(rng: random.Random) -> str:
    name = rng.choice(["token", "api_key", "password", "secret", "authorization"])
    return rng.choice(
        [
            f'{name} = os.environ["{name.upper()}"]\nheaders = {{"Authorization": f"Bearer {{{name}}}"}}\n',
            f"const {name} = process.env.{name.upper()};\nget({{headers: {{Authorization: `Bearer ${{{name}}}`}}}});\n",
            f"def check({name}: str | None = None) -> bool:\n"
            f"    return {name}_by_name[1] == base64.b64decode({name})\n",
            f'export {name.upper()}="$(cat /run/secrets/{name})"\n'
            f'curl -H "Authorization: Bearer ${name.upper()}" h.example\n',
            f"env:\n  {name.upper()}: ${{{{ secrets.{name.upper()} }}}}\n  NEXT_PAGE_TOKEN=page2of30pages\n",
            f'req.Header.Set("Authorization", "Bearer "+{name})\nreq.Header.Set("Cookie", cookie.String())\n',
            f'url = f"postgres://{{user}}:{{{name}}}@{{host}}/db"  # postgres://user:password@host/db\n',
            f"DATABASE_URL=postgres://user:${{{name.upper()}}}@localhost:5432/db\n{name.upper()}=your-{name}-goes-here\n",
            "docker pull registry.example:5000/img:1.2@sha256:" + rng.randbytes(32).hex() + "\n",
            f"{name}: {{type: string, description: 'The {name}, see Basic authentication'}}\nmax_tokens: 4096\n",
        ]
    )


def _advice(rng: random.Random) -> str:
    return rng.choice(
        [
            "Set `OPENAI_API_KEY=sk-...` and `ANTHROPIC_API_KEY=sk-ant-...` first.",
            "Send `Authorization: Bearer YOUR_API_KEY`, or `Authorization: Bearer <token>`.",
            "Authorization: Bearer your-access-token-here",
            "The header is Authorization: Basic followed by base64 of user and password.",
            "Basic authentication and Bearer tokens are described in RFC 7617 and RFC 6750.",
            "A key file begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.",
            "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
            "Cookie: a small text that a site keeps. Set-Cookie: theme=dark; Path=/",
            "Tokens of GitHub begin with ghp_, gho_, ghu_, ghs_ or github_pat_, those of Slack with xoxb-.",
            "The key AKIA... names the account; the token was shown as ghp_****************************abcd.",
            "JSON Web Tokens look like eyJhbGciOi... or like xxxxx.yyyyy.zzzzz.",
            "Wir brauchen das Passwort nicht; le jeton d'accès expire; パスワードは不要です。",
            "https://user@host.example/a:b@c and ssh://git@host.example:2222/x.git and mailto:ann:x@host",
            "see https://h.example/search?q=key&key=value&token=&page_token=CAEQAA12345678 for more",
            "stopped at 12:AAAAAAAA, 10:15:AA and sha256:AA" + "b" * 40,
        ]
    )


def _stack(rng: random.Random) -> str:
    frames = "".join(
        f'  File "/srv/{rng.choice(WORDS)}/{rng.choice(WORDS)}.py", '
        f"line {rng.randint(1, 999)}, in {rng.choice(WORDS)}\n"
        for _ in range(6)
    )
    java = "    at a.b.c.Authorization.check(Authorization.java:77)\n"
    return f"Traceback (most recent call last):\n{frames}KeyError: 'token'\n{java}"


def _lock_file(rng: random.Random) -> str:
    return "".join(
        f"{rng.choice(WORDS)}=={rng.randint(0, 9)}.{rng.randint(0, 9)} \\\n"
        f"    --hash=sha256:{rng.randbytes(32).hex()}\n"
        for _ in range(4)
    )


def _own(rng: random.Random) -> str:
    run = f"exec-20261120-092659-{rng.randbytes(2).hex()}"
    sha = rng.randbytes(32).hex()
    return json.dumps(
        {
            "scope": f"run:{run}",
            "context": f"context:{sha}",
            "machine": f"machine:{sha}",
            "sha256": sha,
            "path": f"state-2026-11-20T092659.123456Z-{sha[:8]}.json",
            "created_at": "2026-11-20T09:26:59.123456Z",
            "effect": {"key": f"{run}:12:0:{sha[:8]}"},
            "requestId": f"{run}:3:{sha[:8]}",
        }
    )


ORDINARY: dict[str, Callable[[random.Random], str]] = {
    "prose": _prose,
    "digests": _digests,
    "integrity of packages": _integrity,
    "base64": _base64,
    "images": _data_url,
    "base64 in lines": _wrapped,
    "certificates": _certificate,
    "public keys": _public_key,
    "UUIDs": _uuids,
    "paths": _paths,
    "git log": _git_log,
    "Markdown rules": _rules,
    "Markdown tables": _table,
    "minified code": _minified,
    "code about secrets": _code,
    "advice about secrets": _advice,
    "stack traces": _stack,
    "lock files": _lock_file,
    "identifiers of our own": _own,
}


def documents() -> list[str]:
    """The paragraphs of this project's documents and the blocks of its source, as they are."""
    root = Path(__file__).resolve().parents[2]
    files = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), *root.glob("examples/**/*.*")]
    texts = [
        path.read_text(encoding="utf-8") for path in sorted(files) if path.suffix in (".md", ".py", ".yaml", ".json")
    ]
    return [block for text in texts for block in text.split("\n\n") if block.strip()]
