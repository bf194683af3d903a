"""The ``issuers`` section of ``access.yaml``: from what an operator writes to bounded values. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.policy.document import Document, Option, read_options
from gateway.policy.issuers import ALGORITHMS, ClaimRule, IssuerPolicy
from gateway.policy.reading import NAME, Item, items, named, number, one_of

_MAX_ISSUERS = 32
_MAX_MAPPED = 1_024
_MAX_DEPTH = 8
_MAX_FIXED = 32
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}))(?::[0-9]{1,5})?"
    r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,1024})?(?P<query>\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,512})?"
)
_DOTTED = re.compile(rf"[A-Za-z0-9_-]{{1,128}}(?:\.[A-Za-z0-9_-]{{1,128}}){{0,{_MAX_DEPTH - 1}}}")
_AUDIENCE = re.compile(r"[!-~]{1,256}")
_MEMBER = re.compile(r"[!-~]{1,128}")
_TYPE = re.compile(r"[a-z0-9.+-]{1,64}")
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,512}")

Names = Mapping[str, Any]


class _Keys(NamedTuple):
    """Where an issuer's keys come from; neither: from what its discovery document names."""

    url: str | None = None
    file: str | None = None


def _texts(pattern: re.Pattern[str], low: int, high: int) -> Callable[[Any], tuple[str, ...] | None]:
    """A reader of lists of distinct texts that ``pattern`` matches whole."""

    def read(value: Any) -> tuple[str, ...] | None:
        if not isinstance(value, list) or not low <= len(value) <= high:
            return None
        if not all(isinstance(text, str) and pattern.fullmatch(text) for text in value):
            return None
        return tuple(dict.fromkeys(value))

    return read


def _algorithms(value: Any) -> tuple[str, ...] | None:
    known = isinstance(value, list) and value and all(isinstance(name, str) and name in ALGORITHMS for name in value)
    return tuple(dict.fromkeys(value)) if known else None


def _address(value: Any, *, query: bool = False) -> str | None:
    """An address as written: the issuer's own spelling is what its tokens say."""
    match = _URL.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match["query"] and not query):
        return None
    return match[0] if match["scheme"] == "https" or _is_loopback(match["host"]) else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _keys(value: Any) -> _Keys | None:
    if value == "discovery":
        return _Keys()
    if not isinstance(value, dict) or len(value) != 1:
        return None
    url, file = _address(value.get("url"), query=True), value.get("file")
    if url is not None:
        return _Keys(url=url)
    return _Keys(file=file) if isinstance(file, str) and _TEXT.fullmatch(file) else None


def _claim(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(value.split(".")) if _DOTTED.fullmatch(value) else None
    listed = isinstance(value, list) and 0 < len(value) <= _MAX_DEPTH
    return tuple(value) if listed and all(isinstance(part, str) and _MEMBER.fullmatch(part) for part in value) else None


def _as_written(value: Any) -> Any:
    return value


_WEB = "https://HOST/PATH, or http:// on this host, without user or fragment"
_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "issuer": Option(_address, f"{_WEB} or query, as the tokens say it", required=True),
        "audiences": Option(_texts(_AUDIENCE, 1, 16), "a list of 1 to 16 texts without spaces", required=True),
        "algorithms": Option(_algorithms, f"a list out of {', '.join(sorted(ALGORITHMS))}", required=True),
        "jwks": Option(_keys, f"discovery, {{url: {_WEB}}} or {{file: PATH}}", _Keys()),
        "tenant": Option(_as_written, "{fixed: TENANT}, or claim and values", required=True),
        "roles": Option(_as_written, "claim and values, or fixed, or both", MappingProxyType({})),
        "types": Option(_texts(_TYPE, 1, 8), "a list of lower-case types without application/", ("at+jwt", "jwt")),
        "leeway": number(0, 300, 30.0),
        "max_lifetime": number(60, 604_800, 86_400.0),
        "denied_subjects": Option(_texts(_TEXT, 0, 10_000), "a list of at most 10000 texts", ()),
        "denied_tokens": Option(_texts(_TEXT, 0, 10_000), "a list of at most 10000 texts", ()),
    }
)
_CLAIM_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "claim": Option(_claim, "a path like realm_access.roles, or its member names as a list", ()),
        "values": Option(_as_written, "names by claim value, or a list of values that are names"),
        "fixed": Option(_as_written, "a name or a list of names"),
    }
)


def read_issuers(document: Document, value: Any, *, roles: Names, tenants: Names | None) -> tuple[IssuerPolicy, ...]:
    """The issuers of the section; faults go to the document.

    What claims map to must be in ``roles``, and in ``tenants`` unless that is ``None`` (any tenant is allowed).
    """
    found: list[IssuerPolicy] = []
    for name, entry, where in named(document, value, "issuers", _MAX_ISSUERS):
        issuer = _Reader(document, where, roles, tenants).issuer(name, entry)
        if issuer.issuer and any(issuer.issuer == other.issuer for other in found):
            document.fault(f"{where}.issuer", "expected an issuer that no other entry has")
        found.append(issuer)
    return tuple(found)


class _Reader:
    """Reads one issuer; a fault leaves a stand-in that is never used."""

    def __init__(self, document: Document, where: str, roles: Names, tenants: Names | None) -> None:
        self._document = document
        self._where = where
        self._roles = one_of(roles, "roles")
        self._tenants = NAME if tenants is None else one_of(tenants, "tenants")

    def issuer(self, name: str, value: Any) -> IssuerPolicy:
        read = read_options(self._document, value, self._where, _OPTIONS)
        keys: _Keys = read["jwks"]
        return IssuerPolicy(
            name=name,
            issuer=read["issuer"] or "",
            audiences=read["audiences"] or (),
            algorithms=read["algorithms"] or (),
            tenant=self._tenant(read["tenant"]),
            roles=self._rule(read["roles"], f"{self._where}.roles", self._roles),
            jwks_url=keys.url,
            keys_file=None if keys.file is None else Path(self._document.source).parent / keys.file,
            types=read["types"],
            leeway=read["leeway"],
            max_lifetime=read["max_lifetime"],
            denied_subjects=frozenset(read["denied_subjects"]),
            denied_tokens=frozenset(read["denied_tokens"]),
        )

    def _tenant(self, value: Any) -> ClaimRule:
        where = f"{self._where}.tenant"
        if value is None:
            return ClaimRule()
        before = len(self._document.faults)
        rule = self._rule(value, where, self._tenants)
        if len(self._document.faults) == before and len(rule.fixed) + bool(rule.claim) != 1:
            self._document.fault(where, "expected either one fixed tenant, or claim and values")
        return rule

    def _rule(self, value: Any, where: str, item: Item) -> ClaimRule:
        read = read_options(self._document, dict(value) if isinstance(value, Mapping) else value, where, _CLAIM_OPTIONS)
        fixed = [read["fixed"]] if isinstance(read["fixed"], str) else read["fixed"] or []
        if bool(read["claim"]) != bool(read["values"]):
            self._document.fault(where, "expected claim and values together")
        return ClaimRule(
            claim=read["claim"],
            values=MappingProxyType(self._values(read["values"] or {}, f"{where}.values", item)),
            fixed=items(self._document, fixed, f"{where}.fixed", item, _MAX_FIXED),
        )

    def _values(self, value: Any, where: str, item: Item) -> dict[str, str]:
        if isinstance(value, list):
            return {text: text for text in items(self._document, value, where, item, _MAX_MAPPED)}
        held = self._document.mapping(value, where)
        if len(held) > _MAX_MAPPED:
            self._document.fault(where, f"expected at most {_MAX_MAPPED} values")
        for text, name in held.items():
            if not item.accepts(name):
                self._document.fault(f"{where}.{text}", f"expected {item.expected}")
        return held
