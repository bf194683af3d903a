"""Faults of commands, turned into exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent

from gateway.aliasing.plan import PlanFault
from gateway.cli.backend import CliFault
from gateway.cli.output import fail
from gateway.errors import GatewayError
from gateway.identity.secrets import SecretFault
from gateway.policy.document import PolicyFault
from gateway.settings import SettingsFault
from gateway.stores.interfaces import StoreError


@contextmanager
def faults_reported() -> Iterator[None]:
    """Turn what is known to go wrong into a message on stderr and exit code 1, never a traceback."""
    try:
        yield
    except StoreError as error:
        fail(f"{str(error).rstrip('.')}.")
    except GatewayError as error:
        fail(error.message)
    except PlanFault as error:
        fail(f"{error.words}.")
    except (CliFault, SecretFault) as error:
        fail(str(error))
    except (SettingsFault, PolicyFault) as error:
        fail(f"the configuration is not valid:\n{indent(str(error), '  ')}")
    except OSError as error:
        fail(f"{error.filename or 'input or output'}: {error.strerror or type(error).__name__}.")
