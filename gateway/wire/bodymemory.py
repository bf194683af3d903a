"""How many bytes of request bodies the connections of a listener hold together."""

from __future__ import annotations


class BodyMemory:
    """Bytes of bodies, counted as they arrive, until their requests have ended: ``whole`` of them at most.

    Each body has a limit of its own. Without this one their number would decide how much memory clients may fill.
    """

    __slots__ = ("held", "whole")

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.held = 0

    def take(self, size: int) -> bool:
        """Count bytes that have come; ``False``, and nothing is counted, when they are too many."""
        held = self.held + size
        if held > self.whole:
            return False
        self.held = held
        return True

    def give_back(self, size: int) -> None:
        """Bytes that were taken are held no more."""
        self.held -= size
