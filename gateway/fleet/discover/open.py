"""From settings to the sources of engines, in the order in which they count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.fleet.discover.dns import DnsSource
from gateway.fleet.discover.file import FileSource
from gateway.fleet.discover.kubernetes import KubernetesSource, this_cluster
from gateway.fleet.discover.sources import ConfiguredSource, Source
from gateway.settings import Settings


def open_sources(settings: Settings, env: Mapping[str, str]) -> tuple[Source, ...]:
    """The configuration, the file, names in DNS, SRV records, Kubernetes: what is set of them."""
    return tuple(_sources(settings, env))


def _sources(settings: Settings, env: Mapping[str, str]) -> Iterator[Source]:
    found, remote = settings.discovery, settings.remote_engines
    if settings.engines:
        yield ConfiguredSource(settings.engines)
    if found.file is not None:
        yield FileSource(found.file, remote)
    for at in found.dns:
        yield DnsSource(at)
    if found.srv:
        from gateway.fleet.discover.srv import SrvSource  # noqa: PLC0415 - needs the extra "dns"

        for name in found.srv:
            yield SrvSource(name, remote)
    if found.kubernetes is not None:
        yield KubernetesSource(found.kubernetes, this_cluster(env))
