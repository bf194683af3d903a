"""Alias globs: ``*`` is any run of characters, ``?`` is one, everything else is itself, and case matters.

They are compiled when a policy is read or a credential is first seen. A name, ``name*`` and ``*name`` cost no pattern:
whatever their number, they are one look-up and two calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

_GLOB = re.compile(r"[A-Za-z0-9._:/*?-]{1,64}")
EXPECTED_GLOB = "an alias or a glob with * and ?, 1 to 64 of A-Z a-z 0-9 . _ : / - * ?"
"""What ``is_glob`` takes, in words. It is the rule that the admin API has for a key's globs."""


def is_glob(value: Any) -> bool:
    """Whether ``value`` may stand in a policy's list of alias globs."""
    return isinstance(value, str) and _GLOB.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Globs:
    """A set of globs, ready to be asked. ``texts`` are the globs as written; the rest is what they compile to."""

    texts: tuple[str, ...] = ()
    everything: bool = False
    exact: frozenset[str] = frozenset()
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def covers(self, alias: str) -> bool:
        """Whether one of the globs covers the whole name."""
        if self.everything or alias in self.exact or alias.startswith(self.starts) or alias.endswith(self.ends):
            return True
        for pattern in self.patterns:  # noqa: SIM110 - a generator would cost more than the usual patterns
            if pattern.match(alias):
                return True
        return False

    def covering(self, alias: str) -> str | None:
        """The first glob that covers the name. For explanations: it compiles each anew."""
        return next((text for text in self.texts if compile_globs((text,)).covers(alias)), None)

    def __or__(self, other: Globs) -> Globs:
        return Globs(
            self.texts + other.texts,
            self.everything or other.everything,
            self.exact | other.exact,
            self.starts + other.starts,
            self.ends + other.ends,
            self.patterns + other.patterns,
        )


def compile_globs(texts: Iterable[str]) -> Globs:
    """Globs out of their texts. Total: any text means something, an empty one the empty name."""
    written = tuple(texts)
    exact, starts, ends, patterns = set(), [], [], []
    everything = False
    for glob in written:
        wild = glob.count("*") + glob.count("?")
        if glob == "*":
            everything = True
        elif not wild:
            exact.add(glob)
        elif wild == 1 and glob.endswith("*"):
            starts.append(glob[:-1])
        elif wild == 1 and glob.startswith("*"):
            ends.append(glob[1:])
        else:
            # ``translate`` keeps what a star matched once and for all, so that many stars cannot take exponential
            # time. It would read a bracket as a set; here one stands for itself.
            patterns.append(re.compile(translate(glob.replace("[", "[[]"))))
    return Globs(written, everything, frozenset(exact), tuple(starts), tuple(ends), tuple(patterns))


NOTHING = Globs()
EVERYTHING = compile_globs(("*",))
