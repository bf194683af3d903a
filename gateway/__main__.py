"""Entry point of the ``gateway`` command."""

from __future__ import annotations

import sys

from gateway.cli.main import app


def main() -> None:
    """Run the command line."""
    # httpx imports a command line of its own, with rich and pygments, wherever these are installed. This tells it that
    # it has none, a case that it provides for: it is more than half of what its import takes.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    app()


if __name__ == "__main__":
    main()
