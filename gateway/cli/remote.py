"""The commands' backend on a running gateway, through its admin API."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from gateway.admin.aliasorders import (
    AbortOrder,
    AliasOrder,
    CanaryOrder,
    ChangeOrder,
    DeleteOrder,
    PromoteOrder,
    RollbackOrder,
)
from gateway.admin.aliasviews import (
    AliasList,
    AliasView,
    DiffView,
    HistoryPage,
    InstanceList,
    WrittenView,
)
from gateway.admin.comparison import ComparisonView
from gateway.admin.explainviews import DecisionView
from gateway.admin.fleetviews import (
    AddOrder,
    DrainOrder,
    EngineChange,
    FleetList,
    FleetOrder,
    RemoveOrder,
    ReplicaView,
    UndrainOrder,
    WarmOrder,
    id_of,
)
from gateway.admin.rules import ExplanationView
from gateway.admin.schemas import (
    KeyList,
    KeyOrder,
    KeyView,
    NewKeyView,
    RotateOrder,
)
from gateway.admin.trail import AuditPage
from gateway.cli.backend import Backend, CliFault, NotThere
from gateway.cli.output import plain
from gateway.secret import Secret
from gateway.wire.tls import client_tls

V = TypeVar("V", bound=BaseModel)

_CHANGES: Mapping[type[ChangeOrder], tuple[str, str]] = MappingProxyType(
    {
        AliasOrder: ("PUT", "/admin/aliases"),
        RollbackOrder: ("POST", "/admin/alias-rollback"),
        CanaryOrder: ("POST", "/admin/alias-canary"),
        PromoteOrder: ("POST", "/admin/alias-promote"),
        AbortOrder: ("POST", "/admin/alias-abort"),
        DeleteOrder: ("DELETE", "/admin/aliases"),
    }
)
_ENGINE_CHANGES: Mapping[type[FleetOrder], str] = MappingProxyType(
    {
        RemoveOrder: "/admin/fleet-remove",
        DrainOrder: "/admin/fleet-drain",
        UndrainOrder: "/admin/fleet-undrain",
        WarmOrder: "/admin/fleet-warm",
    }
)
_IN_OUR_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "not_found": "What answers at {url} does not know this path: it is an inference listener, or a gateway of "
        "another version. --admin-url (GATEWAY_ADMIN_URL) names the admin listener, http://HOST:9090 by default.",
        "store_unavailable": "The gateway at {url} cannot use its state store now; its log says why. Try again when it "
        "can.",
    }
)
"""What refusals that an operator can do something about are called here; the admin API has words for clients."""

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


class RemoteBackend(Backend):
    """Speaks to the admin API at ``url``. Proxies of the environment and redirects are not followed."""

    def __init__(
        self, url: str, token: Secret, *, ca: Path | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """``ca`` holds the authorities that may vouch for an https gateway, else the system's. Raises ``CliFault``."""
        try:
            # Where no TLS is spoken nobody need be trusted, and reading the system's authorities takes its time.
            tls = client_tls(ca) if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        except OSError:
            raise CliFault(f"GATEWAY_ADMIN_CA: {ca} is no PEM file with the certificates of authorities.") from None
        self._url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self._url,
            headers={"authorization": f"Bearer {token.reveal()}"},
            timeout=_TIMEOUT,
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            verify=tls,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def create_key(self, order: KeyOrder) -> NewKeyView:
        """Make a key."""
        return await self._ask(NewKeyView, "POST", "/admin/keys", order)

    async def list_keys(self) -> Sequence[KeyView]:
        """All keys, oldest first."""
        page = await self._ask(KeyList, "GET", "/admin/keys")
        keys = list(page.keys)
        while page.next is not None:
            page = await self._ask(KeyList, "GET", "/admin/keys", query={"after": page.next})
            keys += page.keys
        return keys

    async def show_key(self, key: str) -> KeyView:
        """A key by id or name."""
        return await self._ask(KeyView, "GET", f"/admin/keys/{key}")

    async def revoke_key(self, key: str) -> KeyView:
        """End a key by id or name."""
        return await self._ask(KeyView, "POST", f"/admin/keys/{key}/revoke")

    async def rotate_key(self, key: str, order: RotateOrder) -> NewKeyView:
        """Give a key, by id or name, another text."""
        return await self._ask(NewKeyView, "POST", f"/admin/keys/{key}/rotate", order)

    async def list_aliases(self) -> AliasList:
        """All aliases by name."""
        return await self._ask(AliasList, "GET", "/admin/aliases")

    async def show_alias(self, name: str, number: int | None) -> AliasView:
        """A revision of an alias; ``None``: the current one."""
        return await self._ask(AliasView, "GET", f"/admin/aliases/{name if number is None else f'{name}@{number}'}")

    async def change_alias(self, name: str, order: ChangeOrder) -> WrittenView:
        """Do what the order says."""
        method, place = _CHANGES[type(order)]
        return await self._ask(WrittenView, method, f"{place}/{name}", order)

    async def alias_history(self, name: str, before: int | None) -> HistoryPage:
        """Revisions of an alias with a number below ``before``, newest first."""
        return await self._ask(HistoryPage, "GET", f"/admin/alias-history/{name}", query=_given(before=before))

    async def alias_diff(self, name: str, old: int | None, new: int | None) -> DiffView:
        """What differs between two revisions of an alias."""
        return await self._ask(DiffView, "GET", f"/admin/alias-diff/{name}", query=_given(old=old, new=new))

    async def compare_alias(self, name: str) -> ComparisonView:
        """How an alias's trial does, by what the gateway has counted."""
        return await self._ask(ComparisonView, "GET", f"/admin/alias-compare/{name}")

    async def list_fleet(self) -> FleetList:
        """All replicas by URL, and what is said of them all as the last page has it."""
        page = await self._ask(FleetList, "GET", "/admin/fleet")
        replicas = list(page.replicas)
        while page.next is not None:
            page = await self._ask(FleetList, "GET", "/admin/fleet", query={"after": page.next})
            replicas += page.replicas
        return page.model_copy(update={"replicas": replicas})

    async def show_replica(self, reference: str) -> ReplicaView:
        """A replica by its engine's id or URL."""
        return await self._ask(ReplicaView, "GET", f"/admin/fleet/{id_of(reference)}")

    async def add_engine(self, order: AddOrder) -> EngineChange:
        """Make an engine part of the fleet."""
        return await self._ask(EngineChange, "POST", "/admin/fleet", order)

    async def change_engine(self, reference: str, order: FleetOrder) -> EngineChange:
        """Do what the order says."""
        return await self._ask(EngineChange, "POST", f"{_ENGINE_CHANGES[type(order)]}/{id_of(reference)}", order)

    async def explain_choice(self, request_id: str | None, alias: str | None) -> DecisionView:
        """Why a request was placed so, as the gateway that is asked has it."""
        if request_id is None:
            return await self._ask(DecisionView, "GET", "/admin/fleet-explain", query=_given(alias=alias))
        return await self._ask(DecisionView, "GET", f"/admin/fleet-explain/{quote(request_id, safe='')}")

    async def instances(self) -> InstanceList:
        """The gateways of the last hour."""
        return await self._ask(InstanceList, "GET", "/admin/instances")

    async def audit_page(self, after: int, limit: int) -> AuditPage:
        """Lines of the audit trail with a number above ``after``, and the newest line of all."""
        return await self._ask(AuditPage, "GET", "/admin/audit", query={"after": after, "limit": limit})

    async def explain(self, key: str, alias: str) -> ExplanationView:
        """What the gateway's access policy makes of a key and an alias."""
        return await self._ask(ExplanationView, "GET", "/admin/policy/explain", query={"key": key, "alias": alias})

    async def _ask(
        self,
        view: type[V],
        method: str,
        path: str,
        order: BaseModel | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> V:
        body = None if order is None else order.model_dump()
        try:
            response = await self._client.request(method, path, json=body, params=query)
        except httpx.TransportError as error:
            if isinstance(_root(error), ssl.SSLCertVerificationError):
                raise CliFault(
                    f"What answers at {self._url} has no certificate for that name that is trusted here. Check the "
                    "name in --admin-url; GATEWAY_ADMIN_CA may name a PEM file with the authorities to trust."
                ) from None
            raise CliFault(_unanswered(self._url, method, error)) from None
        if response.status_code == 401:
            raise CliFault(
                f"The gateway at {self._url} refused the admin token. Give it as GATEWAY_ADMIN_TOKEN or "
                "GATEWAY_ADMIN_TOKEN_FILE; on the gateway's host it is the file admin-token in its state folder. "
                "A key or token whose roles have admin verbs may stand in its place."
            )
        if not response.is_success:
            code, message = _refusal(response, self._url)
            if code in _IN_OUR_WORDS:
                message = _IN_OUR_WORDS[code].format(url=self._url)
            raise (NotThere if code == "no_such_object" else CliFault)(message)
        try:
            return view.model_validate_json(response.content)
        except ValidationError:
            raise CliFault(f"What answers at {self._url} is not an admin API of this version.") from None


def _root(error: BaseException) -> BaseException:
    """The error that began it."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _given(**values: str | int | None) -> dict[str, str | int]:
    return {name: value for name, value in values.items() if value is not None}


def _unanswered(url: str, method: str, error: httpx.TransportError) -> str:
    """Why there is no answer, and whether what was asked may have been done. Only what this host says of a connection
    is told: other errors may quote the peer."""
    if isinstance(error, httpx.ConnectTimeout):
        why = f"no connection in {_TIMEOUT.connect:g} s"
    elif isinstance(error, httpx.ConnectError):
        why = plain(str(error))[:200] or "no connection"
    elif method == "GET":
        return f"The gateway at {url} broke off its answer ({type(error).__name__}). Look at its log, and try again."
    else:
        return (
            f"The gateway at {url} gave no answer ({type(error).__name__}): it may have done what was asked all the "
            "same. Look how things stand before you try again."
        )
    return (
        f"No gateway answers at {url} ({why}). Check that it runs and that --admin-url (GATEWAY_ADMIN_URL) names its "
        "admin listener."
    )


def _refusal(response: httpx.Response, url: str) -> tuple[str, str]:
    """The code of an error answer, and what it says."""
    try:
        said: Any = response.json()["error"]
        return str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        return "", f"What answers at {url} is not a gateway's admin API (status {response.status_code})."
