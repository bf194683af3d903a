"""Commands that are imported when they are called: none waits at its start for what only the others need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class Later(TyperCommand):
    """A command, or a group of them, known by its name and its help until somebody calls it.

    ``place`` is ``module:object``: a ``typer.Typer`` there is a group, a function a command. ``help`` is what lists
    show; it is the object's own help or the first paragraph of it.
    """

    def __init__(self, name: str, place: str, help: str, *, epilog: str | None = None) -> None:  # noqa: A002 - Typer's
        super().__init__(name, help=help, epilog=epilog)
        self._place = place

    def load(self) -> TyperCommand | TyperGroup:
        """The command itself."""
        module, _, name = self._place.partition(":")
        found = getattr(import_module(module), name)
        holder = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name, epilog=self.epilog)(found)
        command = get_group(holder).commands[str(self.name)]
        if not isinstance(command, TyperCommand | TyperGroup):
            raise TypeError(f"{self._place} is no command")
        return command

    def make_context(self, *given: Any, **named: Any) -> Any:
        """The context of the command itself, which runs from there on."""
        return self.load().make_context(*given, **named)
