"""Whether a store's keys were made under the peppers at hand. Told at start, not by refusing every key later."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from gateway.identity.secrets import PEPPERS, VARIABLES, SecretFault
from gateway.secret import Secret

_MARKED = b"gateway pepper mark"


class MarkStore(Protocol):
    """What is needed of a store. Raises ``Unavailable`` when it cannot be asked."""

    async def pepper_mark(self, version: int, mark: bytes) -> bytes:
        """The mark kept for a version of the pepper: ``mark`` itself when none was kept before."""
        ...


def pepper_mark(pepper: Secret) -> bytes:
    """HMAC-SHA-256 of a constant under a pepper. It tells two peppers apart and gives neither away.

    No key of ours has a space in it, so no key has this hash.
    """
    return hmac.digest(pepper.reveal().encode(), _MARKED, "sha256")


async def check_peppers(store: MarkStore, peppers: Mapping[int, Secret]) -> None:
    """Compare each pepper with the mark that the store keeps for its version; the first ones seen are kept.

    Raises ``SecretFault`` for a pepper that is not the one of before, ``Unavailable`` when the store cannot be asked.
    """
    for version, pepper in sorted(peppers.items()):
        mark = pepper_mark(pepper)
        if not hmac.compare_digest(await store.pepper_mark(version, mark), mark):
            raise SecretFault(
                f"The keys of this store were made under another pepper of version {version} than the one given here: "
                f"none of them would work. Bring back the former one ({_places(version)}); to replace a pepper, add a "
                "higher version and keep the former one."
            )


def _places(version: int) -> str:
    name = PEPPERS[version]
    return f"{VARIABLES[name]}, {VARIABLES[name]}_FILE or the file {name} beside the state"
