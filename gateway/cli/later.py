"""Commands that are imported when they are called: none waits at its start for what only the others need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_group


def bare_flags(command: TyperCommand | TyperGroup) -> None:
    """Have help show switches alone: behind one, Typer's ``<bool>`` reads as a value that has to be given."""
    for one in (*command.params, command.get_help_option(typer.Context(command))):
        if isinstance(one, TyperOption) and one.is_flag and one.metavar is None:
            one.metavar = ""


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
        members = command.commands.values() if isinstance(command, TyperGroup) else ()
        for one in (command, *members):
            if isinstance(one, TyperCommand | TyperGroup):
                bare_flags(one)
        return command

    def make_context(self, *given: Any, **named: Any) -> Any:
        """The context of the command itself, which runs from there on."""
        return self.load().make_context(*given, **named)
