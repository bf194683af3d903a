"""What aliases and served models may be called, and which alias a served model gets by itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MODEL = r"^[!-~]{1,256}$"
"""What an alias may be pointed at. A pattern."""

EXPECTED_ALIAS = "1 to 64 of A-Z a-z 0-9 . _ : / - without empty, '.' or '..' segments"
"""What ``is_alias`` takes, in words."""

_ALIAS = re.compile(r"[A-Za-z0-9._:/-]{1,64}").fullmatch
_MODEL = re.compile(MODEL[1:-1]).fullmatch
_REWRITTEN = frozenset({"", ".", ".."})  # segments of a path that clients rewrite


def is_alias(value: Any) -> bool:
    """Whether ``value`` may be the name of an alias. ``@`` stays free for ``name@revision``."""
    return isinstance(value, str) and _ALIAS(value) is not None and _REWRITTEN.isdisjoint(value.split("/"))


def is_model(value: Any) -> bool:
    """Whether an alias may be pointed at a served model of that name."""
    return isinstance(value, str) and _MODEL(value) is not None


def automatic_aliases(models: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Alias to served model, and the models that get none: an engine's word is no name until it passes as one.

    The alias is the model's own name. vLLM calls a model that it was given by its path ``/models/one``: that one's
    alias is ``models/one``, unless another model has that name.
    """
    found: dict[str, str] = {}
    rest = []
    for model in sorted(models, key=lambda name: (name.startswith("/"), name)):
        alias = model.lstrip("/")
        if is_alias(alias) and found.setdefault(alias, model) == model:
            continue
        rest.append(model)
    return found, tuple(rest)
