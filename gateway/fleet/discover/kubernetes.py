"""Engines that are the pods behind a Service: its EndpointSlices, listed once and watched from there on.

Plain HTTP against the cluster's API, as the pod's own service account, which needs ``get``, ``list`` and ``watch`` on
``endpointslices`` of ``discovery.k8s.io`` in that namespace and nothing else. Token and authority are read again with
each list and each watch, since a cluster replaces them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson

from gateway.configvalues import Pods
from gateway.fleet.discover.slices import MAX_SLICES, STRANGE, Place, changed, engines_of, read_slice, version_of
from gateway.fleet.discover.sources import DiscoveryFault, Origin, Tell
from gateway.model import EngineSpec
from gateway.wire.tls import client_tls

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATIENCE = 3.5
_WATCH = 60
_PAGE = 64
_MAX_PAGES = MAX_SLICES // _PAGE
_MAX_BYTES = 8 * 1024 * 1024
_MAX_TOKEN = 16 * 1024
_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0
_PLAIN = {"accept": "application/json", "accept-encoding": "identity"}  # a small compressed answer may be a large one
_REASONS: Mapping[int, str] = {
    401: "refuses the service account's token (401)",
    403: "forbids it: the service account needs get, list and watch on endpointslices.discovery.k8s.io (403)",
    404: "has no such namespace, or does not know discovery.k8s.io/v1 (404)",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster's API is, and the folder with ``token`` and ``ca.crt`` of the account that asks it."""

    url: str
    account: Path = ACCOUNT


def this_cluster(env: Mapping[str, str]) -> Cluster | None:
    """The cluster whose pod this process is in, as Kubernetes tells its pods; ``None``: in none."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        return None
    return Cluster(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


class _Expired(DiscoveryFault):
    """The API has forgotten the version that was asked for (410): list anew."""


class KubernetesSource:
    """The ready pods behind a Service.

    While ``follow`` runs, ``look`` tells what it knows; else it lists. A watch ends after a minute and is begun again
    where it ended, so a connection that has died without a word is noticed then.
    """

    name = Origin.KUBERNETES
    believes_empty = False

    def __init__(
        self,
        pods: Pods,
        cluster: Cluster | None,
        *,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = f"{pods.namespace}/{pods.service}:{pods.port}"
        self._pods = pods
        self._cluster = cluster
        self._random = random or secrets.SystemRandom()
        self._sleep = sleep
        self._clock = clock
        self._slices: Mapping[str, frozenset[Place]] = {}
        self._fault = ""
        self._failures = 0
        self._following = False

    async def look(self) -> Sequence[EngineSpec]:
        """The pods as they are now. Raises ``DiscoveryFault``."""
        if not self._following:
            async with self._client() as client:
                await self._list(client)
        elif self._fault:
            raise DiscoveryFault(self._fault)
        return self._engines()

    async def follow(self, tell: Tell) -> None:
        """Tell of every change, until cancelled."""
        try:
            while True:
                delay = 0.0
                try:
                    await self._list_and_watch(tell)
                except DiscoveryFault as fault:
                    if not isinstance(fault, _Expired) or self._failures:
                        self._fault, delay = fault.reason, self._backoff()
                    self._failures += 1
                await self._sleep(delay)
        finally:
            self._following = False

    def _backoff(self) -> float:
        """1, 2, 4 ... seconds, each shortened by up to half at random, so that instances do not come back at once."""
        return min(_BACKOFF * 2.0 ** min(self._failures, 16), _LONGEST_BACKOFF) * self._random.uniform(0.5, 1.0)

    async def _list_and_watch(self, tell: Tell) -> None:
        """Until a fault ends it."""
        async with self._client() as client:
            version = await self._list(client)
            tell(self._engines())
            self._fault, self._following = "", True
            while True:
                version = await self._watch(client, version, tell)

    def _engines(self) -> Sequence[EngineSpec]:
        return engines_of(self._slices.values(), self._pods.host)

    async def _list(self, client: httpx.AsyncClient) -> str:
        """Take in all slices; the version from which to watch. Raises ``DiscoveryFault``."""
        slices: dict[str, frozenset[Place]] = {}
        query = {"limit": str(_PAGE)}
        for _ in range(_MAX_PAGES):
            page = await self._page(client, query)
            items = page.get("items") or []
            if not isinstance(items, list):
                raise DiscoveryFault(STRANGE)
            slices |= dict(read_slice(item, self._pods.port) for item in items)
            version, more = version_of(page), page["metadata"].get("continue")
            if not more:
                self._slices = slices
                return version
            query["continue"] = str(more)
        raise DiscoveryFault(f"has more than {MAX_SLICES} slices")

    async def _page(self, client: httpx.AsyncClient, query: Mapping[str, str]) -> dict[str, Any]:
        body = bytearray()
        async with self._asked(client, query) as answer:
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > _MAX_BYTES:
                    raise DiscoveryFault(STRANGE)
        return _object(bytes(body))

    async def _watch(self, client: httpx.AsyncClient, version: str, tell: Tell) -> str:
        """Follow one watch to its end; the version at which the next begins. Raises ``DiscoveryFault``."""
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH)}
        began, quiet, rest = self._clock(), True, b""
        async with self._asked(client, query, _WATCH + _PATIENCE) as answer:
            async for piece in answer.aiter_raw():
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_BYTES:
                    raise DiscoveryFault(STRANGE)
                for line in filter(None, lines):
                    version = self._heard(_object(line), tell)
                    quiet, self._failures = False, 0
        if quiet and self._clock() - began < _BACKOFF:
            raise DiscoveryFault("ends each watch at once")
        self._failures = 0
        return version

    def _heard(self, event: Mapping[str, Any], tell: Tell) -> str:
        """Take in one event of a watch; its version. Raises ``DiscoveryFault``."""
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR":
            raise _of_status(item.get("code") if isinstance(item, dict) else None)
        version = version_of(item)
        if kind != "BOOKMARK":
            self._slices = changed(self._slices, kind, item, self._pods.port)
            tell(self._engines())
        return version

    @asynccontextmanager
    async def _asked(
        self, client: httpx.AsyncClient, query: Mapping[str, str], patience: float = _PATIENCE
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body is still to come; ``patience`` is seconds of silence. Raises ``DiscoveryFault``."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._pods.namespace}/endpointslices"
        selected = {"labelSelector": f"kubernetes.io/service-name={self._pods.service}", **query}
        times = httpx.Timeout(_PATIENCE, read=patience)
        try:
            async with client.stream("GET", path, params=selected, headers=_PLAIN, timeout=times) as answer:
                if answer.status_code != 200:
                    raise _of_status(answer.status_code)
                yield answer
        except (httpx.HTTPError, OSError):
            raise DiscoveryFault("cannot be reached or trusted, or broke off") from None

    def _client(self) -> httpx.AsyncClient:
        """A client of the API: no proxies from the environment, no redirects. Raises ``DiscoveryFault``."""
        if self._cluster is None:
            raise DiscoveryFault("this process runs in no pod: KUBERNETES_SERVICE_HOST is not set")
        try:
            tls = client_tls(self._cluster.account / "ca.crt")
        except OSError:
            raise DiscoveryFault("cannot be trusted: the service account's ca.crt cannot be read") from None
        try:
            return httpx.AsyncClient(
                auth=partial(_signed, self._cluster.account / "token"),
                base_url=self._cluster.url,
                verify=tls,
                trust_env=False,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=1),
            )
        except httpx.InvalidURL:
            raise DiscoveryFault("cannot be asked: KUBERNETES_SERVICE_HOST is no host") from None

    async def close(self) -> None:
        """It holds nothing that ``follow`` does not give back when it is cancelled."""


def _signed(path: Path, request: httpx.Request) -> httpx.Request:
    """The request with the account's token as it is now. Raises ``DiscoveryFault``."""
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN).decode("ascii").strip()
    except (OSError, UnicodeError):
        raise DiscoveryFault("cannot be asked: the service account's token cannot be read") from None
    if not token.isprintable():
        raise DiscoveryFault("cannot be asked: the service account's token is none")
    request.headers["authorization"] = f"Bearer {token}"
    return request


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise DiscoveryFault(STRANGE)
    return found


def _of_status(status: object) -> DiscoveryFault:
    if status == 410:
        return _Expired("has forgotten the version that was asked for (410)")
    known = _REASONS.get(status) if isinstance(status, int) else None
    shown = status if type(status) is int and 100 <= status <= 599 else "an unknown code"
    return DiscoveryFault(known or f"answers with {shown}")
