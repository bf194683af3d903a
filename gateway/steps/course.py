"""Where the name that a request used leads for who calls: worked out once for the requests of a connection. Pure.

An application sends the same name over a connection thousands of times. What the name comes to is a matter of the alias
table, the policy and the caller's grant alone, each of which is replaced whole; so it stands while all three are the
very objects that it was worked out from.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.model import AliasTable, Revision
from gateway.policy.grants import Grant
from gateway.policy.live import Policy
from gateway.policy.masks import Mask


class Course(NamedTuple):
    """What a name comes to.

    ``model`` is the served model, ``None`` where each conversation has to be given its own of several targets. ``mask``
    are the alias's narrower rules for a body, ``salt`` keeps the tenant's prefixes apart, ``lines`` are header lines
    that tell the client the revision.
    """

    name: str
    table: AliasTable
    policy: Policy
    grant: Grant
    revision: Revision
    model: str | None
    mask: Mask | None
    salt: str | None
    lines: bytes

    def stands(self, name: str, table: AliasTable, policy: Policy, grant: Grant) -> bool:
        """Whether it is that of the name still."""
        return name == self.name and table is self.table and policy is self.policy and grant is self.grant


def course(
    name: str, table: AliasTable, policy: Policy, grant: Grant, *, revision: Revision, salt: str | None
) -> Course:
    """The course of a name that means the revision; ``salt`` is the tenant's, used where policy keeps tenants apart."""
    guards, targets = policy.guards, revision.targets
    return Course(
        name,
        table,
        policy,
        grant,
        revision,
        targets[0].model if len(targets) == 1 else None,
        guards.mask(revision.alias),
        salt if guards.isolation == "tenant" else None,
        b"x-gateway-alias: %b\r\n" % revision.label.encode(),
    )
