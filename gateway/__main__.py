"""Entry point of the ``gateway`` command."""

from __future__ import annotations

from gateway.cli.main import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
