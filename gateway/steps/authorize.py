"""Step 4: whether an alias is a caller's to call. Its grant decides that, and what ``GET /v1/models`` lists. Pure."""

from __future__ import annotations

from gateway.errors import Refusal
from gateway.policy.grants import Grant


def authorize(grant: Grant, alias: str) -> None:
    """Refuse a call that is not the caller's to make.

    An alias outside its grant is answered as one that does not exist (404), so that names cannot be probed. 403 is for
    a credential that is valid and may call nothing at all. Raises ``Refusal``.
    """
    if not grant.callable:
        raise Refusal("alias_forbidden", "This credential may not call any model.")
    if not grant.may_call(alias):
        raise Refusal("model_not_found", param="model")
