"""Find credentials in text: by the name before them (`password=…`, `--hf-token …`), and by shapes of their own.

All searches are linear: fixed texts first, and patterns of bounded length where one of these was found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache

from .patterns import pattern

HIDDEN = "…"
_LONGEST_NAME = 64
_SHORT = 80  # characters of a part of JSON
#: A text that a credential contains -> the pattern of such credentials; only patterns whose text occurs are tried.
_SHAPES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # `https://user:password@host`, `https://token@host`; `${TOKEN}` is no credential, and `git@` of ssh none either.
    # A path reader turns `://` into `:/`.
    (("@",), r"(?i)(\b[a-z][a-z0-9+.-]{1,20}:/{1,3})(?!git@)(?!(?:\w*:)?\$\{?\w+\}?@)[^/\s\"'<>`\\]+@(?=[\w\[$])",
     rf"\1{HIDDEN}@"),
    # `HOST=user:password@host`; an image has a digest after its `name:tag@`.
    (("@",), r"(=[\"']?[A-Za-z][\w.-]{0,63}:)(?!\$)[^\s\"'<>`\\/@:]{3,200}@(?!sha\d)(?=[\w\[])", rf"\1{HIDDEN}@"),
    (("hf_", "sk-", "AKIA", "ASIA", "nvapi-", "pypi-", "ya29.", "npm_", "AIza", "gsk_", "dapi", "dckr_pat_", "k_live_"),
     r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16}|sk-(?:[a-z]{1,12}\d{0,3}-){0,3}[A-Za-z0-9_]{20}|nvapi-[A-Za-z0-9_-]{16}"
     r"|pypi-Ag[A-Za-z0-9_-]{20}|(?:AKIA|ASIA)[A-Z0-9]{16}|ya29\.[A-Za-z0-9_-]{16}|npm_[A-Za-z0-9]{20}"
     r"|AIza[A-Za-z0-9_-]{30}|gsk_[A-Za-z0-9]{20}|dapi[0-9a-f]{32}|dckr_pat_[A-Za-z0-9_-]{16}"
     r"|[sr]k_live_[A-Za-z0-9]{16})[A-Za-z0-9_-]*", HIDDEN),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-"),
     r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|xapp-)[A-Za-z0-9_-]{8,}", HIDDEN),
    (("eyJ",), r"(?<!\w)(?<!\w-)eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+", HIDDEN),
    (("-----BEGIN",),
     r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\w+/=\s]|\\[nr]){0,5000}(?:-----END [A-Z ]*-----)?", HIDDEN),
    (("?", "&", "#"),
     r"(?i)((?:[?&#]|&amp;)(?:sig|signature|key|code|pass|pw|X-(?:Amz|Goog)-\w{1,40})=)[^&\s\"'<>`\\)]+",
     rf"\1{HIDDEN}"),
    (("earer ",), r"(?i)(\bbearer[ \t]+)(?=\S{0,200}\d)[\w.~+/=-]{8,}", rf"\1{HIDDEN}"),
    # conda's `/t/TOKEN/`; the address of a forum has a number after its `/t/title/`.
    (("/t/",), r"(:/{1,3}[^\s\"'<>`\\/]{1,200}(?:/[^\s\"'<>`\\/]{1,60}){0,3}?/t/)(?![^\s/]+/\d+\b)[\w~.-]{4,}(?=/|\b)",
     rf"\1{HIDDEN}"),
    (("hook",), r"(?i)(:/{1,3}(?:hooks\.[^\s\"'<>`\\/]{1,200}/|[^\s\"'<>`\\]{1,200}?/webhooks?\w?\d?/))[^\s\"'<>`\\)]+",
     rf"\1{HIDDEN}"),
    # A part of an address after `/token/`, or one of random letters of both cases with digits.
    (("/token", "/auth/", "/secret", "/apikey/", "/api_key/", "/api-key/"),
     r"(?i)(:/{1,3}[^\s\"'<>`\\]{1,300}?/(?:tokens?|auth|secrets?|api[_-]?key)/)(?=[^\s/]*\d)[^\s\"'<>`\\/)]{6,}",
     rf"\1{HIDDEN}"),
    (("://", ":/"), r"((?<=:/)/?[^\s\"'<>`\\]{1,300}?/)(?=[A-Za-z]{0,99}\d)(?=[A-Z\d]{0,99}[a-z])(?=[a-z\d]{0,99}[A-Z])"
     r"[A-Za-z0-9]{20,200}(?=[/?#\s\"'<>`\\)]|$)", rf"\1{HIDDEN}"),
    (("password ",), r"(?i)(\blogin[ \t]+\S{1,100}[ \t]+password[ \t]+)[^\s\"'<>`\\&]+", rf"\1{HIDDEN}"),
    (("-u ", "-u=", "user "), r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]+[\"']?[\w.@-]{1,64}:)(?!\$)[^\s\"'<>`\\]{3,}",
     rf"\1{HIDDEN}"),
    ((" login ",), r"(\blogin[ \t]+(?:--?[\w-]{1,30}[ \t]+){0,3})[0-9a-f]{40}\b", rf"\1{HIDDEN}"),
)  # fmt: skip
_MARKS = frozenset(mark for marks, _, _ in _SHAPES for mark in marks)
#: Texts that the name of a secret contains.
_STEMS = (
    "token", "passw", "passphrase", "passcode", "pwd", "secret", "_key", "-key", "apikey", "accesskey",
    "privatekey", "signkey", "signingkey", "secretkey", "accountkey", "auth", "credential", "cookie", "bearer",
    "jwt", "webhook", "dsn", "_pass", "-pass", "_pw", "_cred", "connectionstring",
)  # fmt: skip
#: How the name of a secret ends, in lower case without separators.
_NAME = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "apikey", "accesskey", "secretkey",
    "privatekey", "signkey", "signingkey", "authkey", "encryptionkey", "accountkey", "sharedkey", "sshkey",
    "licensekey", "accesskeyid", "credential", "credentials", "authorization", "cookie", "bearer", "jwt", "webhook",
    "webhookurl", "connectionstring",
)  # fmt: skip
_WHOLE_WORD = ("auth", "dsn", "pw")  # names whose last word this is
_USERS = ("db", "user", "smtp", "redis", "mysql", "postgres", "pg", "root", "admin", "http", "https", "proxy", "ftp",
          "ssh", "git", "registry", "docker", "basic", "login", "mail", "email")  # fmt: skip
#: What a token of text, and no credential, is called.
_OF_TEXT = frozenset((
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "video", "audio", "special", "stop", "start", "end",
    "next", "new", "per", "vision", "prompt", "first", "last", "prefix", "suffix", "middle", "decoder", "encoder",
    "boi", "eoi", "boa", "eoa", "bov", "eov", "fim", "eot", "eom", "bot", "think", "tool", "draft", "sampled",
    "output", "input", "generated", "generating", "current", "target", "by", "sink", "register", "patch", "soft",
    "time", "speech", "lang", "language", "placeholder", "additional", "extra", "gen", "text", "action",
    "separator", "split", "fill", "bad", "good", "max", "min", "num", "n", "total", "each", "unexpected", "dist",
    "distillation", "class", "row", "column", "newline", "begin", "word", "sub", "unknown", "out", "every", "this",
    "that", "second", "third", "previous", "prev", "one", "single", "forced", "suppress", "no", "any", "img", "vid",
    "aud", "kv", "decode", "prefill", "cached", "reasoning", "byte", "bpe", "mtp", "query", "document", "doc",
    "answer", "chat", "role", "system",
))  # fmt: skip
#: Plain words in the place of a value: a state, a type or code, and no secret.
_NO_VALUE = frozenset((
    "true", "false", "none", "null", "nil", "yes", "no", "on", "off", "not", "is", "was", "are", "be", "the", "a",
    "an", "str", "string", "int", "bool", "boolean", "bytes", "float", "optional", "union", "any", "required",
    "missing", "invalid", "expired", "empty", "unset", "absent", "set", "unknown", "default", "auto", "env",
    "environ", "environment", "from", "and", "or", "for", "to", "of", "in", "as", "with", "must", "should", "has",
    "have", "self", "lambda", "redacted", "hidden", "masked", "tensor", "list", "dict", "tuple", "sequence",
    "callable", "literal", "type", "object", "found", "given", "used", "use", "using", "needed", "unable", "failed",
    "failure", "error", "denied", "refused", "granted", "valid", "ok", "basic", "bearer", "digest", "negotiate",
    "login", "logout", "enabled", "disabled", "anonymous", "secret", "token", "password", "value", "key", "it",
    "this", "that", "there", "if", "when", "while", "which", "but", "by", "at", "please", "see", "check", "provide",
    "pass", "import", "undefined", "unused", "unsupported", "rejected", "accepted", "revoked", "http", "https",
    "ssh", "file", "nvidia", "hf",
))  # fmt: skip
_CODE = pattern(
    r"(?:os|self|args|cfg|config|torch|typing|np|settings|options|params|kwargs|request|env|environ|secrets|process|this"
    r"|data|opt|opts|hparams|t|jax|google|getpass)\.\w"
)
_NUMBER = pattern(r"[-+]?\d[\d.,_]*(?:e[-+]?\d+)?[a-zA-Z%]{0,3}")
_PLACEHOLDER = pattern(
    r"[A-Z_]*(?:TOKEN|PASSWORD|KEY|SECRET|VALUE|NAME|HERE|AUTH)|[*xX.•_-]+|<.*>|\[.*\]|\{.*\}|\$.*|%.*"
)
_WORDS = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BEFORE = pattern(r"([A-Za-z]+)[ \t]$")
#: A string of JSON, or what is left of one that does not end, with its last quote. No text takes a second attempt.
_JSON_STRING = r'(?s)("[^"\\]*(?:\\.?[^"\\]*)*("|\Z))'
_LEAST = 5  # characters of a text with a credential in it, as `&pw=1`
_ONE_QUOTE = r"\\*(?:[\"'`]|&(?:quot|apos|#0*3[49]|#x2[27]);)"
_QUOTE = rf"(?:(?:{_ONE_QUOTE}){{5}}|{_ONE_QUOTE})"  # five: as a shell writes a quote inside of quotes
_BETWEEN = rf"{_QUOTE}?[ \t]{{0,4}}(?:(?:=>|:=|==?|:(?![:/])|%3A)[ \t]{{0,4}}|(?:>|&gt;)(?!{_ONE_QUOTE}))"
_AFTER_OPTION = rf"{_QUOTE}?(?:[ \t]{{1,4}}|=|,[ \t]{{0,4}}(?={_QUOTE}))(?!-)"
_SCHEME = r"(?i)(?:bearer|basic|token|digest|negotiate)(?:[ \t]+|%20)"
_VALUE = (
    r"(?:[bBrRuUfF]{1,2}(?=[\"'\\]))?(?:(?P<plain>[\"'`])(?![\"'`])(?P<a>(?:\\.|(?!(?P=plain))[^\\\n]){1,400})(?P=plain)"
    rf"|(?P<quote>{_QUOTE})(?P<b>(?:(?!(?P=quote))[^\n]){{1,400}})(?P=quote)"
    rf"|(?P<cut>{_QUOTE})(?P<d>(?:(?!(?P=cut))[^\n]){{1,400}})\Z"  # the text ends inside of it
    rf"|(?P<open>{_QUOTE})?(?P<c>[^\s\"'`<>\\,;&|(){{}}\[\]…]{{1,4096}}))"
)


def without_credentials(text: str) -> str:
    """Return the text with passwords and tokens as `…`, in addresses, after their names and on their own."""
    marked = set(filter(text.__contains__, _MARKS))
    if marked:
        for marks, pattern, shown in _SHAPES:
            if not marked.isdisjoint(marks):
                text = re.sub(pattern, shown, text)
    spans = list(_named_values(text))
    if not spans:
        return text
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], HIDDEN]
        done = end
    return "".join((*parts, text[done:]))


def names_secret(name: str) -> bool:
    """Return whether what has this name is a secret: `hf_token`, `--api-key`, `dbPassword`; not `eos_token`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    flat = "".join(words)
    if flat.endswith("token"):
        before = words[-2] if words[-1] == "token" and len(words) > 1 else flat.removesuffix("token")
        return before not in _OF_TEXT
    if flat.endswith(_NAME) or words[-1] in _WHOLE_WORD:
        return True
    if words[-1] == "pass":
        return len(words) > 1 and (words[-2] in _USERS or name.isupper())
    return name.isupper() and words[-1] in ("key", "cred", "creds") and len(words) > 1


def json_without_credentials(text: str) -> str:
    """Return JSON, or lines of JSON, with the credentials of each of its strings as `…`; its structure stays."""
    parts: list[str] = []
    secret = ""  # the key of a string, if it names a secret
    pieces = re.split(_JSON_STRING, text)
    for before, written, quote, after in zip(pieces[::3], pieces[1::3], pieces[2::3], pieces[3::3], strict=False):
        key = secret if before[-1:] in ": " else ""
        if not quote:
            hidden = key and not _is_no_secret(written[1:], key, number_hides=True)
            return "".join((*parts, f'{before}"{HIDDEN}' if hidden else _part_without_credentials(before + written)))
        parts.append(_part_without_credentials(before) if len(before) >= _LEAST else before)
        is_short = len(written) <= _SHORT
        parts.append(_short_json_string(written, key) if is_short else _json_string(written, key))
        secret = "" if after[:1] != ":" else _short_secret(written) if is_short else _secret(written)
    return "".join((*parts, _part_without_credentials(pieces[-1])))


def _json_string(written: str, secret: str) -> str:
    """Return one string of JSON without credentials; `secret` is its key, where that names a secret."""
    if secret and not _is_no_secret(written[1:-1], secret, number_hides=True):
        return f'"{HIDDEN}"'
    if "\\" not in written:
        return f'"{without_credentials(written[1:-1])}"'
    try:
        value = json.loads(written)
    except ValueError:  # no JSON after all
        return without_credentials(written)
    shown = without_credentials(value)
    return written if shown == value else json.dumps(shown, ensure_ascii=written.isascii())


def _secret(written: str) -> str:
    """Return a key of JSON without its quotes if it names a secret; else nothing."""
    return written[1:-1] if names_secret(written[1:-1]) else ""


#: Short strings are remembered: most of JSON are keys and words that come again and again.
_short_json_string = lru_cache(maxsize=4096)(_json_string)
_short_secret = lru_cache(maxsize=4096)(_secret)


def _part_without_credentials(text: str) -> str:
    return without_credentials(text) if len(text) > _SHORT else _short_without_credentials(text)


@lru_cache(maxsize=4096)
def _short_without_credentials(text: str) -> str:
    """Remember short texts: what is between the strings of JSON comes again and again."""
    return without_credentials(text)


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each value after the name of a secret."""
    done = 0
    for at in _stems(text):
        if at < done:
            continue
        start, end = _name_around(text, at)
        done = end
        if names_secret(text[start:end]):
            found = _value(text, start, end)
            if found is not None:
                yield found
                done = found[1]


def _stems(text: str) -> list[int]:
    lower = text.lower()
    if len(lower) != len(text):  # a letter whose small form is longer would shift the positions
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    found: list[int] = []
    for stem in filter(lower.__contains__, _STEMS):
        at = lower.find(stem)
        while at >= 0:
            found.append(at)
            at = lower.find(stem, at + len(stem))
    return sorted(found)


def _name_around(text: str, at: int) -> tuple[int, int]:
    start, end = at, at
    floor, ceiling = max(at - _LONGEST_NAME, 0), min(at + _LONGEST_NAME, len(text))
    while start > floor and (text[start - 1].isalnum() or text[start - 1] in "_-"):
        start -= 1
    while end < ceiling and (text[end].isalnum() or text[end] in "_-"):
        end += 1
    return start, end


def _value(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where the value of a name is; None where none follows, or what follows is no secret."""
    between, option, scheme, value = _value_patterns()
    name = text[start:end]
    follows = between.match(text, end)
    if follows is None and name.startswith("--"):
        follows = option.match(text, end)
    if follows is None:
        return None
    before = _BEFORE.search(text, max(start - 20, 0), start)
    if before is not None and name.lower() == "token" and before[1].lower() in _OF_TEXT:
        return None
    at = follows.end()
    if (named := scheme.match(text, at)) is not None:
        at = named.end()
    found = value.match(text, at)
    if found is None:
        return None
    part = next(name for name in "abdc" if found[name] is not None)
    shown = found[part]
    after = text[found.end() : found.end() + 1]
    if part == "c" and not found["open"] and _is_code(shown, after):
        return None
    is_json = follows[0][:1] in '"\\&' and part == "c"
    return None if _is_no_secret(shown.strip(), name, number_hides=not is_json) else found.span(part)


@lru_cache(maxsize=1)
def _value_patterns() -> tuple[re.Pattern[str], ...]:
    """Compile at the first use: most answers name no secret."""
    return tuple(map(re.compile, (_BETWEEN, _AFTER_OPTION, _SCHEME, _VALUE)))


def _is_code(value: str, after: str) -> bool:
    """Return whether a value without quotes is the name of a variable, or a call."""
    if _CODE.match(value) or (after in ("(", "[") and after and re.fullmatch(r"[A-Za-z_.]+", value)):
        return True
    return re.fullmatch(r"[a-z_]+", value) is not None and names_secret(value)


def _is_no_secret(value: str, name: str, *, number_hides: bool) -> bool:
    word = value.rstrip(".,:;!?").lower()
    if len(word) < 2 or word in _NO_VALUE or _PLACEHOLDER.fullmatch(value):
        return True
    if value.startswith((":", "/")) and name.lower() in ("pwd", "auth", "token"):
        return True
    if _NUMBER.fullmatch(value):
        is_count = "token" in name.lower() or "auth" in name.lower() or len(value) < 4
        return is_count or not number_hides
    return False
