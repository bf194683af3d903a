"""What aliases, served models and notes may look like, and which alias a served model gets by itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

EXPECTED_ALIAS = "an alias name, 1 to 64 of A-Z a-z 0-9 . _ : / - without empty, '.' or '..' segments"
EXPECTED_MODEL = "the name of a served model, 1 to 256 printable ASCII characters without spaces"
EXPECTED_NOTE = "a note, one line of at most 200 characters"

_ALIAS = re.compile(r"[A-Za-z0-9._:/-]{1,64}").fullmatch
_MODEL = re.compile(r"[!-~]{1,256}").fullmatch
_NOTE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{0,200}").fullmatch
_REWRITTEN = frozenset({"", ".", ".."})  # segments of a path that clients rewrite


def is_alias(value: Any) -> bool:
    """Whether ``value`` may be the name of an alias. ``@`` stays free for ``name@revision``."""
    return isinstance(value, str) and _ALIAS(value) is not None and _REWRITTEN.isdisjoint(value.split("/"))


def is_model(value: Any) -> bool:
    """Whether an alias may be pointed at a served model of that name."""
    return isinstance(value, str) and _MODEL(value) is not None


def is_note(value: Any) -> bool:
    """Whether ``value`` may be a revision's note: one line, which is also printed."""
    return isinstance(value, str) and _NOTE(value) is not None


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
