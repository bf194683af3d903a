"""The policy files of a scenario: who has which priority and weight, and how the gateway admits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtests.overload.scenarios import Caller
from loadtests.routing.targets import routing as balanced

_USER = "user"
_STRATEGY = "estimate"
_UNREACHABLE = 1_000_000

NO_LIMIT: Mapping[str, Any] = {"in_flight": _UNREACHABLE}
"""Of the section ``admission``: the engines' queues hold all."""


def role(caller: Caller) -> str:
    """The role that a caller's key gets."""
    return caller.priority or _USER


def access(callers: Mapping[str, Caller], *, fairness: bool) -> Mapping[str, Any]:
    """A whole ``access.yaml``. Without ``fairness`` tenants and roles have their names and no options.

    The brake on failed attempts is off: a gateway without admission may count refusals there.
    """
    roles: dict[str, dict[str, Any]] = {_USER: {"aliases": ["*"]}}
    tenants: dict[str, dict[str, Any]] = {}
    for caller in callers.values():
        roles[role(caller)] = {"aliases": ["*"]}
        tenants[caller.tenant] = {}
        if fairness:
            roles[role(caller)] |= {"priority": caller.priority} if caller.priority else {}
            tenants[caller.tenant] |= {"weight": caller.weight}
    return {"roles": roles, "default_roles": [_USER], "tenants": tenants, "failures": _UNREACHABLE}


def routing(admission: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A whole ``routing.yaml``, with this section ``admission``; ``None``: without one."""
    return {**balanced(_STRATEGY), **({} if admission is None else {"admission": dict(admission)})}
