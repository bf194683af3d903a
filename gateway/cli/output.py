"""How commands speak: results on stdout, all else on stderr, faults without tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import orjson
import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


_SENTENCE = 30
"""How many characters a column of sentences needs to be read."""
_FRAME = 3
"""Characters between the texts of two columns of a table."""


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and a message on stderr."""
    typer.echo(f"gateway: {message}", err=True)
    raise typer.Exit(1)


def note(message: str) -> None:
    """Tell the person something that is not the result."""
    typer.echo(message, err=True)


def print_json(value: BaseModel | Sequence[BaseModel]) -> None:
    """The whole object, or the list of them, on stdout."""
    whole = [item.model_dump() for item in value] if isinstance(value, Sequence) else value.model_dump()
    typer.echo(orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode())


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, or a field a line where that is too narrow for one; lines of tab-separated fields, headed
    by the names of the columns, in a pipe."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            typer.echo("\t".join(map(plain, row)))
        return
    # Only a terminal needs rich, and every command would wait for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    if rows and not table_fits(columns, rows, console.width):
        typer.echo(title)
        for row in rows:
            typer.echo()
            print_fields([(column.lower(), cell) for column, cell in zip(columns, row, strict=True)])
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console.print(table)


def table_fits(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a table can be read in ``width`` characters: no column is broken but the last, where sentences stand."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return sum(widths[:-1]) + min(widths[-1], _SENTENCE) + _FRAME * len(widths) + 1 <= width


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """One object, a field a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        typer.echo(f"{name:<{width}}  {plain(value)}")


def plain(text: str) -> str:
    """Text without what would act on a terminal or look like a column's end."""
    return "".join(character if character.isprintable() else "?" for character in text)


def moment(seconds: float | None) -> str:
    """A time as a person reads it, in UTC; ``-`` for never."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"
