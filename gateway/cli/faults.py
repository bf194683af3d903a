"""Faults of commands, turned into exit codes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent
from types import MappingProxyType

import typer

from gateway.aliasing.plan import PlanFault
from gateway.cli.backend import CliFault, Misuse, NotThere
from gateway.cli.output import fail, plain
from gateway.errors import GatewayError
from gateway.identity.secrets import SecretFault
from gateway.policy.document import PolicyFault
from gateway.settings import SettingsFault
from gateway.stores.interfaces import NotFound, StoreError

_NEXT = MappingProxyType(
    {
        errno.EADDRINUSE: "Something listens there already: stop it, or choose another port (--listen, --admin).",
        errno.EADDRNOTAVAIL: "This host has no such address: --listen and --admin take one that it has.",
        errno.EACCES: "This user may not do that.",
        errno.EPERM: "This user may not do that.",
        errno.ENOSPC: "Make room there, and try again.",
    }
)
"""What to do about an error of the system, where its own words do not say it."""


@contextmanager
def faults_reported(missing: str = "") -> Iterator[None]:
    """Turn what is known to go wrong into a message on stderr and exit code 1, never a traceback.

    ``missing`` is added when what was named does not exist. Raises ``typer.BadParameter`` (exit code 2) for an option
    that cannot be acted on.
    """
    try:
        yield
    except (NotFound, NotThere) as error:
        text = str(error).rstrip(".")
        fail(f"{text[:1].upper()}{text[1:]}. {missing}".rstrip())
    except StoreError as error:
        fail(f"{str(error).rstrip('.')}.")
    except GatewayError as error:
        fail(error.message)
    except PlanFault as error:
        fail(f"{error.words}.")
    except Misuse as error:
        raise typer.BadParameter(str(error)) from None
    except (CliFault, SecretFault) as error:
        fail(str(error))
    except SettingsFault as error:
        fail(f"the configuration is not valid:\n{indent(str(error), '  ')}")
    except PolicyFault as error:
        fail(f"the policy files are not valid:\n{indent(str(error), '  ')}")
    except OSError as error:
        fail(_system_words(error))


def _system_words(error: OSError) -> str:
    place = plain(str(error.filename or "input or output"))
    follows = _NEXT.get(error.errno or 0)
    return f"{place}: {error.strerror or type(error).__name__}." + (f" {follows}" if follows else "")
