"""The configuration of one instance: flags over environment over file over defaults, parsed once into frozen values.

Every fault of every source is found before any is reported. A message names the place and what was expected; it never
quotes a value, which may hold a password.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway import configvalues, stateurl
from gateway.configfile import Given, YamlFault, read_yaml
from gateway.configvalues import Address, Parser, Pods, engine_fault, is_listed
from gateway.model import EngineSpec
from gateway.secret import Secret
from gateway.stateurl import is_redis, sqlite_path, without_password

__all__ = [
    "Address",
    "DiscoverySettings",
    "Settings",
    "SettingsFault",
    "Timeouts",
    "default_state",
    "engine_key",
    "is_redis",
    "load_settings",
    "open_to_readers",
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
class DiscoverySettings:
    """Where engines are found besides ``engines``. ``interval`` is seconds from one look to the next.

    ``file`` holds a list as ``engines`` does; ``dns`` are names whose addresses are engines at a port, ``srv`` names
    whose SRV records lead to engines; ``kubernetes`` are the pods behind a Service.
    """

    file: Path | None = None
    dns: tuple[Address, ...] = ()
    srv: tuple[str, ...] = ()
    kubernetes: Pods | None = None
    interval: float = 5.0


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: the certificate chain that listeners show, and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that ``gateway.yaml`` may say, with its defaults.

    ``state`` is the state URL without a password, which is in ``state_password`` (Redis only; ``None``: none is given).
    ``state_folder`` holds the secrets that the gateway makes: by default the folder of the state file, with Redis the
    one where that file would be.
    ``tls`` is for the inference listener, and for the admin listener unless that is on loopback.
    ``remote_engines`` are the hosts to which prompts may leave this one, by TLS; an entry that begins with a dot is all
    names below it. ``engine_ca`` holds the authorities that may vouch for them (``None``: the system's), ``engine_key``
    is the key that engines ask for.
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
    tls: TlsSettings | None = None
    engines: tuple[EngineSpec, ...] = ()
    remote_engines: tuple[str, ...] = ()
    engine_ca: Path | None = None
    engine_key: Secret | None = None
    discovery: DiscoverySettings = DiscoverySettings()
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
_DISCOVERY = tuple(DiscoverySettings.__dataclass_fields__)
_TLS = tuple(TlsSettings.__dataclass_fields__)
_PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "listen": configvalues.address,
        "admin": configvalues.address,
        "tls.certificate": configvalues.file,
        "tls.key": configvalues.file,
        "state": stateurl.state,
        "state_folder": configvalues.absolute,
        "policies": configvalues.folder,
        "engines": configvalues.engines,
        "remote_engines": configvalues.remote_hosts,
        "engine_ca": configvalues.authorities,
        "discovery.file": configvalues.file,
        "discovery.dns": configvalues.host_ports,
        "discovery.srv": configvalues.service_names,
        "discovery.kubernetes": configvalues.pods,
        "discovery.interval": configvalues.seconds,
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
_GROUPS = MappingProxyType(
    {
        "timeouts": "{idle: 120}",
        "discovery": "{dns: vllm-nodes.serving.svc:8443}",
        "tls": "{certificate: chain.pem, key: key.pem}",
    }
)
"""Settings that have names of their own below them, with an example of each."""

_MAX_SECRET = 4_096
_KEY = re.compile(r"[!-~]+").fullmatch
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
    remote: tuple[str, ...] = values.get("remote_engines", ())
    timeouts, places = _group("timeouts", _TIMEOUTS, values), _group("discovery", _DISCOVERY, values)
    tls = _tls(_group("tls", _TLS, values), faults)
    if configvalues.overlap(values.get("listen") or _LISTEN, values.get("admin") or _ADMIN):
        faults.append("listen, admin: expected two addresses, such as 127.0.0.1:8080 and 127.0.0.1:9090")
    faults += _engine_faults(engines, remote)
    faults += _discovery_faults(places, remote)
    password, key = _secret(state_password, env, faults), _secret(engine_key, env, faults)
    if faults:
        raise SettingsFault(faults)
    values["state"], in_url = without_password(values["state"])
    values.setdefault("state_folder", state_folder_of(values["state"], env))
    return Settings(
        **values,
        state_password=in_url or password,
        engine_key=key,
        tls=tls,
        engines=tuple(spec for _, spec in engines),
        timeouts=Timeouts(**timeouts),
        discovery=_discovery(places),
    )


def open_to_readers(settings: Settings) -> Iterator[str]:
    """A warning for each listener whose clients' keys and prompts can be read on their way."""
    for name, address in (("listen", settings.listen), ("admin", settings.admin)):
        if settings.tls is None and not address.on_loopback:
            yield (
                f"warning: {name} is {address}, not loopback and without TLS: keys and prompts can be read on their "
                "way. Set tls in the configuration, or have something in front of it that speaks TLS."
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
    return _given_secret(env, "GATEWAY_REDIS_PASSWORD", "a password")


def engine_key(env: Mapping[str, str]) -> Secret | None:
    """The key that engines ask for, in ``GATEWAY_ENGINE_KEY`` or in the file that ``GATEWAY_ENGINE_KEY_FILE`` names.

    It goes into a header as it is. Raises ``SettingsFault``.
    """
    key = _given_secret(env, "GATEWAY_ENGINE_KEY", "a key")
    if key is not None and not _KEY(key.reveal()):
        raise SettingsFault(["GATEWAY_ENGINE_KEY: expected a key of printable ASCII characters without spaces"])
    return key


def _given_secret(env: Mapping[str, str], name: str, what: str) -> Secret | None:
    """The secret in a variable, or in the file that the variable ``NAME_FILE`` names. Raises ``SettingsFault``."""
    value, file = env.get(name), env.get(f"{name}_FILE")
    if value and file:
        raise SettingsFault([f"{name} and {name}_FILE are both set. Keep one of them."])
    if not file:
        return Secret(value) if value else None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            others = os.fstat(opened.fileno()).st_mode & stat.S_IRWXO
            text = opened.read(_MAX_SECRET + 1).strip()
    except (OSError, ValueError):
        raise SettingsFault([f"{name}_FILE: expected a text file that can be read"]) from None
    if others or not 0 < len(text) <= _MAX_SECRET:
        raise SettingsFault([f"{name}_FILE: expected {what} in a file that others cannot use (chmod 600)"])
    return Secret(text)


def _secret(
    read: Callable[[Mapping[str, str]], Secret | None], env: Mapping[str, str], faults: list[str]
) -> Secret | None:
    try:
        return read(env)
    except SettingsFault as fault:
        faults += fault.faults
        return None


def _group(group: str, names: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    """Take the given settings of a group out of the values."""
    return {name: values.pop(f"{group}.{name}") for name in names if f"{group}.{name}" in values}


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
    for name in [name for name in found if name not in _PARSERS]:
        faults.append(f"{found.pop(name).where}: {_unknown(name)}")
    return found


def _flat(values: Mapping[str, Given], faults: list[str]) -> Iterator[tuple[str, Given]]:
    for name, given in values.items():
        if name not in _GROUPS:
            yield name, given
        elif isinstance(given.value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in given.value.items())
        else:
            faults.append(f"{given.where}: {name}: expected settings, such as {_GROUPS[name]}")


def _unknown(name: str) -> str:
    group, dot, own = name.rpartition(".")
    known = [one.removeprefix(group + dot) for one in (*_PARSERS, *_GROUPS) if one.startswith(group + dot)]
    near = get_close_matches(own, known, n=1)
    if near:
        return f"unknown setting {name!r}; did you mean {group}{dot}{near[0]}?"
    return f"unknown setting {name!r}" + (f"; expected one of {', '.join(known)}" if group else "")


def _engine_faults(engines: Sequence[tuple[Given, EngineSpec]], remote: Sequence[str]) -> Iterator[str]:
    seen = Counter(spec.url for _, spec in engines)
    for given, spec in engines:
        if seen[spec.url] > 1:
            yield f"{given.where}: engines: expected each URL only once"
        expected = engine_fault(spec, remote)
        if expected is not None:
            yield f"{given.where}: engines: expected {expected}"


def _tls(files: Mapping[str, Path | None], faults: list[str]) -> TlsSettings | None:
    """The pair of files, which has to be one that a listener can use now."""
    certificate, key = files.get("certificate"), files.get("key")
    if len(files) == 1:
        faults.append("tls: expected both certificate and key, or neither")
    if certificate is None or key is None:
        return None
    if not configvalues.is_pair(certificate, key):
        faults.append("tls: expected a PEM chain in certificate, and its key, without a passphrase, in key")
    elif key.stat().st_mode & stat.S_IRWXO:
        faults.append("tls.key: expected a file that others cannot use (chmod 600; defaultMode: 0400 of a Secret)")
    return TlsSettings(certificate, key)


def _discovery(places: Mapping[str, Any]) -> DiscoverySettings:
    """The values without the places where they were given."""
    named = {name: tuple(value for _, value in places[name]) for name in ("dns", "srv") if name in places}
    pods = {"kubernetes": places["kubernetes"][1]} if "kubernetes" in places else {}
    return DiscoverySettings(**{**places, **named, **pods})


def _discovery_faults(places: Mapping[str, Any], remote: Sequence[str]) -> Iterator[str]:
    """A name is not enough: whoever answers for it must show a certificate, and ops say for which names one counts."""
    for given, address in places.get("dns", ()):
        host = address.host.rstrip(".")
        if host != "localhost" and not is_listed(host, remote):
            yield f"{given.where}: discovery.dns: expected the host to be listed in remote_engines, or localhost"
    for given, _ in places.get("srv", ()):
        if not remote:
            yield f"{given.where}: discovery.srv: expected remote_engines to list the hosts that its targets may have"
        if find_spec("dns") is None:
            yield f"{given.where}: discovery.srv: expected the package dnspython: pip install 'gateway[dns]'"
    for given, pods in filter(None, (places.get("kubernetes"),)):
        if not is_listed(pods.host, remote):
            yield f"{given.where}: discovery.kubernetes: expected SERVICE.NAMESPACE.svc to be listed in remote_engines"
