"""What each kind of setting looks like: from a given value to a typed one, or a report of what was expected.

Pure, apart from looks whether a folder is there and whether a file holds certificates.

Nothing here quotes a value: an address may hold a password.
"""

from __future__ import annotations

import ipaddress
import math
import re
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from gateway.configfile import Given
from gateway.model import EngineSpec

Report: TypeAlias = Callable[[Given, str], None]
Parser: TypeAlias = Callable[[Given, Report], Any]
"""Gives the value, or reports at least one fault and gives something that will not be used."""

HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})"
"""What a host may look like; ``sound_host`` tells which of those are none. A pattern."""

_ADDRESS = re.compile(rf"(?P<host>{HOST}):(?P<port>[0-9]{{1,5}})").fullmatch
_ENGINE = re.compile(rf"(?P<scheme>https?)://(?P<host>{HOST})(?::(?P<port>[0-9]{{1,5}}))?/?").fullmatch
_HOST_VALUE = re.compile(rf"(?:{HOST})(?::[0-9]{{1,5}})?").fullmatch
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}").fullmatch
_BARE_HOST = re.compile(HOST).fullmatch
_SIZE = re.compile(r"(?P<count>[0-9]{1,13})(?: ?(?P<unit>B|KiB|MiB|GiB))?").fullmatch
_SUFFIX = re.compile(r"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})){2,}").fullmatch
_SERVICES = re.compile(rf"(?:_[A-Za-z0-9-]{{1,62}}\.){{0,2}}(?P<host>{HOST})").fullmatch
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PODS = re.compile(
    rf"(?P<namespace>{_DNS_LABEL})/(?P<service>{_DNS_LABEL}):(?:(?P<port>[0-9]{{1,5}})|(?P<name>{_DNS_LABEL}))"
).fullmatch
_MAX_NAMES = 16
_UNITS = MappingProxyType({"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30})
_ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_DEFAULT_PORTS = MappingProxyType({"http": 80, "https": 443})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds (port 0 takes a free one), or a name that leads to engines and their port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def on_loopback(self) -> bool:
        """Whether it is reached from this host alone: 127.0.0.0/8, ::1 or ``localhost``."""
        return is_loopback_host(self.host)


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods behind a Kubernetes Service, at a port: a number, or the name that one of their ports has."""

    namespace: str
    service: str
    port: int | str

    @property
    def host(self) -> str:
        """The Service's name in its cluster, which the certificates of its pods have to have."""
        return f"{self.service}.{self.namespace}.svc"


def sound_host(host: str) -> bool:
    """A bracketed host has to be IPv6; one that ends in a number has to be IPv4 (never 127.1 or 0x7f.1).

    No label of a name has more than 63 characters, as resolvers ask.
    """
    try:
        if host.startswith("["):
            return ipaddress.ip_address(host.strip("[]")).version == 6
        if re.fullmatch(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)\.?", host.rstrip(".").rpartition(".")[2]):
            return ipaddress.ip_address(host).version == 4
    except ValueError:
        return False
    return ".." not in host and all(len(label) <= 63 for label in host.split("."))


def address(given: Given, report: Report) -> Address | None:
    """``HOST:PORT``, an IPv6 host in brackets."""
    match = _ADDRESS(given.value) if isinstance(given.value, str) else None
    if match is None or int(match["port"]) > 65_535 or not sound_host(match["host"]):
        report(given, "HOST:PORT, such as 127.0.0.1:8080, an IPv6 host in brackets, a port up to 65535")
        return None
    return Address(match["host"].strip("[]"), int(match["port"]))


def overlap(one: Address, other: Address) -> bool:
    """Whether two listeners would meet. Both can be bound, and then only one of them ever gets a connection."""
    hosts = {one.host, other.host}
    return one.port == other.port != 0 and (len(hosts) == 1 or not hosts.isdisjoint(_ANY_HOST))


def folder(given: Given, report: Report) -> Path | None:
    """A folder that exists; relative to the file that names it."""
    path = given.base / given.value if isinstance(given.value, str) else None
    if path is None or not path.is_dir():
        report(given, "a folder that exists")
        return None
    return path


def file(given: Given, report: Report) -> Path | None:
    """The path of a file that may be missing yet; relative to the file that names it."""
    if not isinstance(given.value, str) or not given.value or "\0" in given.value:
        report(given, "the path of a file")
        return None
    return given.base / given.value


def authorities(given: Given, report: Report) -> Path | None:
    """A PEM file with certificates of authorities; relative to the file that names it."""
    path = file(given, report)
    try:
        if path is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cafile=path)
            if context.cert_store_stats()["x509_ca"]:
                return path
    except OSError:
        pass
    if path is not None:
        report(given, "a PEM file with the certificates of authorities")
    return None


def is_pair(certificate: Path, key: Path) -> bool:
    """Whether the files are a certificate chain and its key, which asks for no passphrase."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError):
        return False
    return True


def absolute(given: Given, report: Report) -> Path | None:
    """The absolute path of a folder that may be missing yet."""
    path = Path(given.value) if isinstance(given.value, str) else None
    if path is None or not path.is_absolute() or "\0" in str(path):
        report(given, "an absolute path of a folder")
        return None
    return path


def seconds(given: Given, report: Report) -> float:
    """A time of more than 0 and at most a day."""
    value = _number(given.value)
    if not 0 < value <= 86_400:
        report(given, "seconds, more than 0 and at most 86400")
    return value


def whole(low: int, high: int) -> Parser:
    """A parser of whole numbers from ``low`` to ``high``."""

    def parse(given: Given, report: Report) -> int:
        value = _number(given.value)
        if not (low <= value <= high and value.is_integer()):
            report(given, f"a whole number from {low} to {high}")
            return low
        return int(value)

    return parse


def size(low: int, high: int) -> Parser:
    """A parser of bytes: a whole number, or text like ``512 MiB``, from ``low`` to ``high``."""

    def parse(given: Given, report: Report) -> int:
        value = size_of(given.value)
        if value is None or not low <= value <= high:
            report(given, f"a size from {low} to {high} bytes, such as 512 MiB")
            return low
        return value

    return parse


def size_of(value: object) -> int | None:
    """Bytes out of a whole number, or of text like ``8 MiB``; ``None`` for anything else."""
    if isinstance(value, str):
        match = _SIZE(value)
        return int(match["count"]) * _UNITS[match["unit"] or "B"] if match else None
    return value if type(value) is int else None


def hosts(given: Given, report: Report) -> tuple[str, ...]:
    """A list of host names, each perhaps with a port; lower-cased."""
    found = []
    for item in _items(given, report, "a list of hosts"):
        if not isinstance(item.value, str) or _HOST_VALUE(item.value) is None:
            report(item, "a host name or address, perhaps with :PORT")
            continue
        found.append(item.value.lower())
    return tuple(found)


def remote_hosts(given: Given, report: Report) -> tuple[str, ...]:
    """A list of hosts without ports, or ``.SUFFIX`` for all names below it; lower-cased, IPv6 without brackets."""
    found = []
    for item in _items(given, report, "a list of hosts"):
        text = item.value if isinstance(item.value, str) else ""
        if (_BARE_HOST(text) and sound_host(text)) or (_SUFFIX(text) and is_name(text[1:])):
            found.append(text.lower().strip("[]").rstrip("."))
        else:
            report(item, "a host name or address without port, or .SUFFIX (two labels at least) for all names below it")
    return tuple(found)


def is_listed(host: str, remote: Collection[str]) -> bool:
    """Whether ``remote_engines`` lists a host: itself, or a suffix that it stands below."""
    labels = host.split(".")
    return host in remote or any("." + ".".join(labels[at:]) in remote for at in range(1, len(labels)))


def host_ports(given: Given, report: Report) -> tuple[tuple[Given, Address], ...]:
    """A list of ``NAME:PORT`` to look up in DNS, with the places where they are given. Addresses are no names."""
    found = []
    for item in _few(given, report, "a list of names with ports"):
        match = _ADDRESS(item.value) if isinstance(item.value, str) else None
        if match is None or not is_name(match["host"]) or not 0 < int(match["port"]) <= 65_535:
            report(item, "NAME:PORT, such as vllm-nodes.serving.svc:8443; an address belongs in engines")
            continue
        found.append((item, Address(match["host"].lower(), int(match["port"]))))
    return tuple(found)


def service_names(given: Given, report: Report) -> tuple[tuple[Given, str], ...]:
    """A list of names that have SRV records, with the places where they are given."""
    found = []
    for item in _few(given, report, "a list of names"):
        match = _SERVICES(item.value) if isinstance(item.value, str) else None
        if match is None or not is_name(match["host"]):
            report(item, "a name that has SRV records, such as _https._tcp.vllm-nodes.serving.svc")
            continue
        found.append((item, item.value.lower()))
    return tuple(found)


def pods(given: Given, report: Report) -> tuple[Given, Pods] | None:
    """``NAMESPACE/SERVICE:PORT``, with the place where it is given."""
    match = _PODS(given.value) if isinstance(given.value, str) else None
    if match is None or not 0 < int(match["port"] or 1) <= 65_535:
        report(given, "NAMESPACE/SERVICE:PORT, such as serving/vllm-nodes:8443 or serving/vllm-nodes:https")
        return None
    return given, Pods(match["namespace"], match["service"], int(match["port"]) if match["port"] else match["name"])


def engines(given: Given, report: Report) -> tuple[tuple[Given, EngineSpec], ...]:
    """A list of engines, each a URL or ``{url: ..., labels: {...}}``, with the places where they are given."""
    found = [(item, _engine(item, report)) for item in _items(given, report, "a list of engines")]
    return tuple((item, spec) for item, spec in found if spec is not None)


def engine_fault(spec: EngineSpec, remote: Collection[str]) -> str | None:
    """What was expected of an engine that prompts may not go to; ``None``: they may.

    They leave this host only to where ops allow it, and never in the clear.
    """
    if is_https(spec):
        listed = is_listed(spec.server_name or engine_host(spec), remote)
        return None if listed else "the host of an https engine to be listed in remote_engines"
    if is_loopback(spec):
        return None
    return (
        "a loopback host (127.0.0.1, [::1] or localhost) for an http engine; others by https, listed in remote_engines"
    )


def is_https(spec: EngineSpec) -> bool:
    """Whether an engine is to be reached by TLS."""
    return spec.url.startswith("https:")


def is_loopback(spec: EngineSpec) -> bool:
    """Whether an engine's address never leaves this host: 127.0.0.0/8, ::1 or ``localhost``."""
    return is_loopback_host(engine_host(spec))


def is_loopback_host(host: str) -> bool:
    """The same of a host, without brackets."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def engine_host(spec: EngineSpec) -> str:
    """The host of an engine's URL, without brackets."""
    return spec.url.partition("://")[2].rpartition(":")[0].strip("[]")


def _engine(given: Given, report: Report) -> EngineSpec | None:
    if not isinstance(given.value, dict):
        url = _engine_url(given, report)
        return None if url is None else EngineSpec(url)
    for name in given.value.keys() - {"url", "labels"}:
        report(given.value[name], "only url and labels in an engine")
    if "url" not in given.value:
        report(given, "url in an engine")
        return None
    url = _engine_url(given.value["url"], report)
    labels = _labels(given.value.get("labels", Given({}, given.where)), report)
    return None if url is None else EngineSpec(url, MappingProxyType(labels))


def _engine_url(given: Given, report: Report) -> str | None:
    match = _ENGINE(given.value) if isinstance(given.value, str) else None
    if match is None or not sound_host(match["host"]):
        report(given, "http://HOST:PORT without user, path or query")
        return None
    port = int(match["port"] or _DEFAULT_PORTS[match["scheme"]])
    if not 0 < port <= 65_535:
        report(given, "a port from 1 to 65535")
        return None
    return f"{match['scheme']}://{match['host'].lower()}:{port}"


def _labels(given: Given, report: Report) -> dict[str, str]:
    if not isinstance(given.value, dict):
        report(given, "labels as names and texts, such as {gpu: a100}")
        return {}
    for name, item in given.value.items():
        if _LABEL(name) is None or not isinstance(item.value, str | int | float):
            report(item, "labels as names and texts, such as {gpu: a100}")
    return {name: str(item.value) for name, item in given.value.items()}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def is_name(host: str) -> bool:
    """Whether a host is a name: not an address, and nothing that some resolver would take for one."""
    last = host.rstrip(".").rpartition(".")[2]
    return _BARE_HOST(host) is not None and sound_host(host) and not host.startswith("[") and not last.isdecimal()


def _few(given: Given, report: Report, expected: str) -> Sequence[Given]:
    """The items of a short list; one alone needs no list."""
    items = _items(given, report, expected)
    if len(items) > _MAX_NAMES:
        report(given, f"at most {_MAX_NAMES} names")
    return items[:_MAX_NAMES]


def _items(given: Given, report: Report, expected: str) -> Sequence[Given]:
    """The items of a list; a text is a list with commas, as the environment gives it."""
    if isinstance(given.value, str):
        return [Given(text.strip(), given.where) for text in given.value.split(",") if text.strip()]
    if not isinstance(given.value, list | tuple):
        report(given, expected)
        return []
    return [item if isinstance(item, Given) else Given(item, given.where) for item in given.value]
