"""The shell around every command that acts on a state: the options that all share, and the work on a backend."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from gateway.cli.backend import Backend
from gateway.cli.choose import Where, choose
from gateway.cli.faults import faults_reported
from gateway.secret import Secret

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="URL",
        help="Act on this state directly, such as sqlite:///var/lib/gateway/state.db or redis://HOST:6379/0.",
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option("--admin-url", metavar="URL", help="Act through the gateway there. Also GATEWAY_ADMIN_URL."),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        metavar="TOKEN",
        help="Its admin token, or a key with admin verbs. Better GATEWAY_ADMIN_TOKEN: options show in 'ps'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the whole object as JSON.")]

_FIELDS = MappingProxyType(
    {
        "name": "NAME",
        "tenant": "--tenant",
        "roles": "--role",
        "aliases": "--alias",
        "requests_per_minute": "--rpm",
        "tokens_per_minute": "--tpm",
        "tokens_per_day": "--tpd",
        "concurrency": "--concurrency",
        "expires_in": "--expires",
        "overlap": "--overlap",
        "note": "--note",
        "model": "--model",
        "targets": "--model",
        "url": "URL",
        "labels": "--label",
    }
)
"""By which option or argument a field of an order is given."""
_NAME = "expected 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit"
_EXPECTED = MappingProxyType(
    {
        "name": _NAME,
        "tenant": _NAME,
        "roles": _NAME,
        "aliases": "expected an alias or a glob with * and ?, 1 to 64 of A-Z a-z 0-9 . _ : / - * ?",
        "expires_in": "expected a time from 1s to 3660d",
        "overlap": "expected a time from 0s to 90d",
    }
)
"""What is said in place of a rule's pattern or of a bound in seconds."""

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])").fullmatch
_UNITS = MappingProxyType({"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800})


def where(state: str | None, admin_url: str | None, admin_token: str | None) -> Where:
    """The shared options as one value."""
    return Where(state, admin_url, None if admin_token is None else Secret(admin_token))


def act(place: Where, work: Callable[[Backend], Awaitable[T]], *, missing: str = "") -> T:
    """Do the work on the backend that the options choose. Ends with exit code 1 and a message when it fails.

    ``missing`` says where to look when what was named does not exist.
    """
    with faults_reported(missing):
        return asyncio.run(_within(place, work))


async def _within(place: Where, work: Callable[[Backend], Awaitable[T]]) -> T:
    async with choose(place, os.environ) as backend:
        return await work(backend)


def checked(kind: type[B], **values: Any) -> B:
    """An order built from options. A value that breaks its rule is a usage error (exit code 2)."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        words = _EXPECTED.get(field, first["msg"].removeprefix("Value error, "))
        option = _FIELDS.get(field)
        raise typer.BadParameter(words, param_hint=None if option is None else f"'{option}'") from None


def duration(text: str) -> int:
    """Seconds in ``90d``, ``12h``, ``30m``, ``45s`` or ``2w``. Raises ``typer.BadParameter``."""
    match = _DURATION(text)
    if match is None:
        raise typer.BadParameter("expected a number with a unit of s, m, h, d or w, such as 90d")
    return int(match[1]) * _UNITS[match[2]]


def time_option(text: str | None) -> str | None:
    """A time as an option is given it, which ``duration`` takes. Raises ``typer.BadParameter``."""
    if text is not None:
        duration(text)
    return text


def waiting_time(text: str) -> int:
    """Seconds in ``600`` or ``10m``: how long to wait is the one time that needs no unit. Raises
    ``typer.BadParameter``."""
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    try:
        return duration(text)
    except typer.BadParameter:
        raise typer.BadParameter("expected seconds, or a number with a unit of s, m, h, d or w, such as 10m") from None


def waiting_option(text: str) -> str:
    """A time as ``--timeout`` is given it, which ``waiting_time`` takes. Raises ``typer.BadParameter``."""
    waiting_time(text)
    return text


Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait: seconds, or 10m.", callback=waiting_option)
]
