"""Step 4: what a principal may call. One function decides both a call and what ``GET /v1/models`` lists. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gateway.errors import Refusal
from gateway.model import Principal


def may_call(principal: Principal, alias: str) -> bool:
    """Whether one of the principal's globs (``*`` and ``?``, case matters) covers the alias."""
    globs = principal.aliases
    return "*" in globs or alias in globs or any(_covers(glob, alias) for glob in globs)


def _covers(glob: str, alias: str) -> bool:
    """``*`` and ``?`` alone are special; a bracket, which ``fnmatch`` would read as a set, stands for itself."""
    return fnmatchcase(alias, glob.replace("[", "[[]"))


def authorize(principal: Principal, alias: str) -> None:
    """Refuse a call that is not the principal's to make.

    An alias outside its grant is answered as one that does not exist (404), so that names cannot be probed. 403 is for
    a credential that is valid and may call nothing at all. Raises ``Refusal``.
    """
    if not principal.aliases:
        raise Refusal("alias_forbidden", "This credential may not call any model.")
    if not may_call(principal, alias):
        raise Refusal("model_not_found", param="model")
