"""The configuration of one instance: flags over environment over file over defaults, parsed once into frozen values.

Every fault of every source is found before any is reported. A message names the place and what was expected; it never
quotes a value, which may hold a password.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway import configvalues, stateurl
from gateway.configfile import Given, YamlFault, read_yaml
from gateway.configvalues import Address, Parser, engine_host, is_https, is_loopback
from gateway.model import EngineSpec
from gateway.secret import Secret
from gateway.stateurl import is_redis, sqlite_path, without_password

__all__ = [
    "Address",
    "Settings",
    "SettingsFault",
    "Timeouts",
    "default_state",
    "is_redis",
    "load_settings",
    "sqlite_path",
    "state_folder_of",
    "state_password",
]


class SettingsFault(Exception):
    """The configuration cannot be used. ``faults`` has one line for each thing to correct."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


_LISTEN = Address("127.0.0.1", 8080)
_ADMIN = Address("127.0.0.1", 9090)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``total`` bounds an answer that is not streamed; a stream is bounded by ``idle`` between its bytes."""

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 120.0
    total: float = 900.0
    drain: float = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that ``gateway.yaml`` may say, with its defaults.

    ``state`` is the state URL without a password, which is in ``state_password`` (Redis only; ``None``: none is given).
    ``state_folder`` holds the secrets that the gateway makes: by default the folder of the state file, with Redis the
    one where that file would be.
    ``hosts`` are the Host values that the inference listener accepts (empty: any well-formed one). ``attempts`` is how
    many replicas one request may touch. ``trusted_hops`` is how many proxies in front append to ``x-forwarded-for`` (0:
    that header is not read). ``body_memory`` is how many bytes of request bodies all connections of the inference
    listener may hold together, from a body's arrival to the end of its request; what comes beyond them is refused with
    503. ``min_body_rate`` is bytes per second; times are seconds.
    """

    state: str
    state_folder: Path
    policies: Path
    state_password: Secret | None = None
    listen: Address = _LISTEN
    admin: Address = _ADMIN
    engines: tuple[EngineSpec, ...] = ()
    remote_engines: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()
    attempts: int = 2
    trusted_hops: int = 0
    max_connections: int = 10_000
    max_connections_per_replica: int = 1_024
    probe_interval: float = 1.0
    request_head_timeout: float = 10.0
    body_timeout: float = 30.0
    min_body_rate: int = 1_024
    body_memory: int = 1 << 30


_TIMEOUTS = tuple(Timeouts.__dataclass_fields__)
_PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "listen": configvalues.address,
        "admin": configvalues.address,
        "state": stateurl.state,
        "state_folder": configvalues.absolute,
        "policies": configvalues.folder,
        "engines": configvalues.engines,
        "remote_engines": configvalues.hosts,
        "hosts": configvalues.hosts,
        "attempts": configvalues.whole(1, 10),
        "trusted_hops": configvalues.whole(0, 16),
        "max_connections": configvalues.whole(1, 1_000_000),
        "max_connections_per_replica": configvalues.whole(1, 65_535),
        "probe_interval": configvalues.seconds,
        "request_head_timeout": configvalues.seconds,
        "body_timeout": configvalues.seconds,
        "min_body_rate": configvalues.whole(1, 1 << 30),
        "body_memory": configvalues.size(1 << 20, 1 << 40),
        **{f"timeouts.{name}": configvalues.seconds for name in _TIMEOUTS},
    }
)
_GROUPS = ("timeouts",)
_MAX_PASSWORD = 4_096
_PASSWORD = "GATEWAY_REDIS_PASSWORD"  # noqa: S105 - a name, not a secret
_FLAGS = MappingProxyType({"engines": "engine"})


def variable(name: str) -> str:
    """The environment variable of a setting: ``timeouts.idle`` is ``GATEWAY_TIMEOUTS_IDLE``."""
    return "GATEWAY_" + name.upper().replace(".", "_")


def load_settings(flags: Mapping[str, Any], env: Mapping[str, str], config: Path | None = None) -> Settings:
    """The settings that ``flags`` (by setting name; ``None`` is "not given"), ``env`` and the file ``config`` make.

    ``GATEWAY_CONFIG`` names the file when ``config`` does not. Raises ``SettingsFault`` with all faults. Unknown names
    are faults in a file only: Kubernetes puts variables such as ``GATEWAY_PORT`` into the environment by itself.
    """
    faults: list[str] = []
    named = env.get("GATEWAY_CONFIG")
    path = config or (Path(named) if named else None)
    layers: tuple[Mapping[str, Given], ...] = (
        {"state": Given(default_state(env), "default"), "policies": Given(str(files("policies")), "default")},
        _from_file(path, faults) if path else {},
        {name: Given(env[variable(name)], variable(name)) for name in _PARSERS if env.get(variable(name))},
        {name: Given(value, f"--{_FLAGS.get(name, name)}") for name, value in flags.items() if value is not None},
    )
    values: dict[str, Any] = {}
    for layer in layers:
        values.update(_parsed(layer, faults))
    engines: tuple[tuple[Given, EngineSpec], ...] = values.pop("engines", ())
    faults += _engine_faults(engines, values.get("remote_engines", ()))
    password = _password(env, faults)
    if faults:
        raise SettingsFault(faults)
    values["state"], in_url = without_password(values["state"])
    values.setdefault("state_folder", state_folder_of(values["state"], env))
    timeouts = Timeouts(**{name: values.pop(f"timeouts.{name}") for name in _TIMEOUTS if f"timeouts.{name}" in values})
    return Settings(
        **values, state_password=in_url or password, engines=tuple(spec for _, spec in engines), timeouts=timeouts
    )


def default_state(env: Mapping[str, str]) -> str:
    """``sqlite:///$XDG_STATE_HOME/gateway/state.db``; as its specification says, a relative value is ignored."""
    base = Path(env.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():
        base = Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return f"sqlite://{base / 'gateway' / 'state.db'}"


def state_folder_of(url: str, env: Mapping[str, str]) -> Path:
    """The folder of an installation's own secrets, for a state URL and no setting that says otherwise.

    ``GATEWAY_STATE_FOLDER``, else the folder of the SQLite file, else (Redis) the folder of ``default_state``. Raises
    ``ValueError`` with what was expected for a URL that names no store.
    """
    given = env.get(variable("state_folder"))
    return Path(given) if given else sqlite_path(default_state(env) if is_redis(url) else url).parent


def state_password(env: Mapping[str, str]) -> Secret | None:
    """The password in ``GATEWAY_REDIS_PASSWORD`` or in the file that ``GATEWAY_REDIS_PASSWORD_FILE`` names, if any.

    Raises ``SettingsFault``. The password in a state URL goes before it.
    """
    value, file = env.get(_PASSWORD), env.get(f"{_PASSWORD}_FILE")
    if value and file:
        raise SettingsFault([f"{_PASSWORD} and {_PASSWORD}_FILE are both set. Keep one of them."])
    if not file:
        return Secret(value) if value else None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            others = os.fstat(opened.fileno()).st_mode & stat.S_IRWXO
            text = opened.read(_MAX_PASSWORD + 1).strip()
    except (OSError, ValueError):
        raise SettingsFault([f"{_PASSWORD}_FILE: expected a text file that can be read"]) from None
    if others or not 0 < len(text) <= _MAX_PASSWORD:
        raise SettingsFault([f"{_PASSWORD}_FILE: expected a password in a file that others cannot use (chmod 600)"])
    return Secret(text)


def _password(env: Mapping[str, str], faults: list[str]) -> Secret | None:
    try:
        return state_password(env)
    except SettingsFault as fault:
        faults += fault.faults
        return None


def _parsed(layer: Mapping[str, Given], faults: list[str]) -> dict[str, Any]:
    def parse(name: str, given: Given) -> Any:
        return _PARSERS[name](given, lambda at, expected: faults.append(f"{at.where}: {name}: expected {expected}"))

    return {name: parse(name, given) for name, given in layer.items()}


def _from_file(path: Path, faults: list[str]) -> dict[str, Given]:
    """The file's values by setting name, groups flattened."""
    try:
        root = read_yaml(path)
    except YamlFault as fault:
        faults += fault.faults
        return {}
    if not isinstance(root.value, dict):
        faults.append(f"{root.where}: expected settings, such as listen: 127.0.0.1:8080")
        return {}
    found = dict(_flat(root.value, faults))
    for name in found.keys() - _PARSERS.keys():
        faults.append(f"{found.pop(name).where}: {_unknown(name)}")
    return found


def _flat(values: Mapping[str, Given], faults: list[str]) -> Iterator[tuple[str, Given]]:
    for name, given in values.items():
        if name not in _GROUPS:
            yield name, given
        elif isinstance(given.value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in given.value.items())
        else:
            faults.append(f"{given.where}: {name}: expected settings, such as {{idle: 120}}")


def _unknown(name: str) -> str:
    near = get_close_matches(name, (*_PARSERS, *_GROUPS), n=1)
    return f"unknown setting {name!r}" + (f"; did you mean {near[0]}?" if near else "")


def _engine_faults(engines: Sequence[tuple[Given, EngineSpec]], remote: Sequence[str]) -> Iterator[str]:
    """Prompts leave this host only to where ops allow it, and never in the clear."""
    seen = Counter(spec.url for _, spec in engines)
    for given, spec in engines:
        if seen[spec.url] > 1:
            yield f"{given.where}: engines: expected each URL only once"
        if is_https(spec):
            listed = engine_host(spec) in remote
            yield f"{given.where}: engines: " + (
                "expected http on loopback: this version does not support https engines yet"
                if listed
                else "expected the host of an https engine to be listed in remote_engines"
            )
        elif not is_loopback(spec):
            yield f"{given.where}: engines: expected a loopback host (127.0.0.1, [::1] or localhost) for an http engine"
