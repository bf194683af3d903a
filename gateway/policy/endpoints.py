"""What one endpoint's body may hold: its rules as ``guards.yaml`` says them, and the judging of a body by them.

A member that is not listed is refused, so that a new field of an engine is closed until somebody opens it. A listed
one is passed on or, with ``action: drop``, judged and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.errors import PLAIN_NAME, Refusal
from gateway.model import BodyKind, Endpoint, FormPart
from gateway.policy.document import Document, read_options
from gateway.policy.kinds import KINDS, Bounds, Kind, Parser
from gateway.policy.rules import Rule
from gateway.routes import ROUTES

_ENDPOINT_KEYS = ("include", "required", "fields", "always", "needs", "apart")
# Members that the gateway itself reads, and the kind that each must be. Only stream_options, which it writes anew, may
# be dropped.
_PINNED: Mapping[str, str] = MappingProxyType(
    {
        "model": "model",
        "stream": "boolean",
        "stream_options": "switches",
        "n": "integer",
        "max_tokens": "integer",
        "max_completion_tokens": "integer",
        "max_output_tokens": "integer",
    }
)
_JUDGED = frozenset(route.endpoint for route in ROUTES.values() if route.body is not BodyKind.NONE)
_FORMS = frozenset(route.endpoint for route in ROUTES.values() if route.body is BodyKind.MULTIPART)


@dataclass(frozen=True, slots=True)
class EndpointGuard:
    """The rules of one endpoint's body.

    ``always`` is sent whatever the client wrote. ``needs`` pairs a member with one that must be true beside it,
    ``apart`` holds pairs that may not come together. ``parsers`` read a form's text; ``files`` are its file fields.
    """

    rules: Mapping[str, Rule]
    required: tuple[str, ...]
    dropped: frozenset[str]
    always: Mapping[str, Any]
    needs: tuple[tuple[str, str], ...]
    apart: tuple[tuple[str, str], ...]
    parsers: Mapping[str, Parser]
    files: frozenset[str]

    def judge(self, payload: Mapping[str, Any]) -> None:
        """Raise ``Refusal`` for the first member that is not as the rules say; a null member is as if absent."""
        rules = self.rules
        for name, value in payload.items():
            rule = rules.get(name)
            if rule is None:
                raise _unknown(name)
            if value is not None and (fault := rule(value)) is not None:
                raise _refusal(name, fault)
        for name in self.required:
            if payload.get(name) is None:
                raise _refusal(name, " is required")
        for name, other in self.needs:
            if payload.get(name) is not None and payload.get(other) is not True:
                raise _refusal(name, f" is only allowed when {other} is true")
        for name, other in self.apart:
            if _asks(payload.get(name)) and _asks(payload.get(other)):
                raise _refusal(name, f" may not be combined with {other}")

    def judge_form(self, parts: Iterable[FormPart]) -> dict[str, Any]:
        """The form's fields as values, judged like the members of a JSON body; files only where one is expected."""
        values: dict[str, Any] = {}
        for part in parts:
            name = part.name
            if name not in self.rules:
                raise _unknown(name)
            if (part.filename is not None) != (name in self.files):
                raise _refusal(name, " must be a file" if name in self.files else " must not be a file")
            value = part if name in self.files else self.parsers[name](part.data.decode())
            values[name] = [*values.get(name, ()), value] if name.endswith("[]") else value
        self.judge(values)
        return values


class EndpointReader:
    """Builds endpoint guards out of a document, noting faults there."""

    def __init__(self, document: Document, bounds: Bounds, groups: Mapping[str, Any]) -> None:
        self._document = document
        self._bounds = bounds
        self._groups = groups

    def endpoints(self, value: Any) -> dict[Endpoint, EndpointGuard]:
        known = sorted(endpoint.value for endpoint in _JUDGED)
        written = self._document.mapping(value, "endpoints", known)
        for name in known:
            if name not in written:
                self._document.fault("endpoints", f"expected {name}; every endpoint with a body has its rules")
        return {Endpoint(name): self._endpoint(Endpoint(name), held) for name, held in written.items()}

    def _endpoint(self, endpoint: Endpoint, value: Any) -> EndpointGuard:
        where = f"endpoints.{endpoint.value}"
        written = self._document.mapping(value, where, _ENDPOINT_KEYS)
        fields = self._fields(written, where)
        built = {name: self._rule(held, at, endpoint) for name, (held, at) in fields.items()}
        named = {name: kind for name, (_, kind, _) in built.items()}
        required = self._document.names(written.get("required", []), f"{where}.required")
        if "model" not in required:
            self._document.fault(where, "expected model in required: the gateway reads it")
        return EndpointGuard(
            rules={name: rule for name, (rule, _, _) in built.items()},  # no view of it: it is asked for each member
            required=self._known(required, named, where),
            dropped=frozenset(name for name, (_, _, drop) in built.items() if drop),
            always=MappingProxyType(self._document.mapping(written.get("always", {}), f"{where}.always")),
            needs=self._pairs(written.get("needs", []), f"{where}.needs", named),
            apart=self._pairs(written.get("apart", []), f"{where}.apart", named),
            parsers=MappingProxyType({name: kind.parse for name, kind in named.items() if kind.parse}),
            files=frozenset(name for name, kind in named.items() if kind is KINDS["file"]),
        )

    def _fields(self, written: Mapping[str, Any], where: str) -> dict[str, tuple[Any, str]]:
        """Every field's settings and where they stand: those of the groups first, the endpoint's own over them."""
        fields: dict[str, tuple[Any, str]] = {}
        for group in self._document.names(written.get("include", []), f"{where}.include"):
            if group not in self._groups:
                self._document.fault(f"{where}.include", f"expected one of the groups {', '.join(self._groups)}")
                continue
            held = self._document.mapping(self._groups[group], f"groups.{group}")
            fields |= {name: (settings, f"groups.{group}.{name}") for name, settings in held.items()}
        own = self._document.mapping(written.get("fields", {}), f"{where}.fields")
        return fields | {name: (settings, f"{where}.fields.{name}") for name, settings in own.items()}

    def _rule(self, value: Any, where: str, endpoint: Endpoint) -> tuple[Rule, Kind, bool]:
        written = dict(self._document.mapping(value, where))
        action = written.pop("action", "pass")
        name = written.pop("is", None)
        kind = KINDS.get(name) if isinstance(name, str) else None
        if action not in ("pass", "drop"):
            self._document.fault(where, "expected action: pass or drop")
        if kind is None:
            self._document.fault(where, f"expected is: one of {', '.join(sorted(KINDS))}")
            return _nothing, KINDS["never"], False
        member = where.rpartition(".")[2]
        dropped = action == "drop" and member != "stream_options"
        if member in _PINNED and (name != _PINNED[member] or dropped):
            self._document.fault(where, f"expected is: {_PINNED[member]}, not dropped: the gateway reads it")
        if endpoint in _FORMS and kind.parse is None and kind is not KINDS["file"]:
            self._document.fault(where, f"{name} cannot be read from a form")
        before = len(self._document.faults)
        options = read_options(self._document, written, where, kind.options)
        for low, high in (("min", "max"), ("min_items", "max_items")):
            if options.get(low) is not None and options.get(high) is not None and options[low] > options[high]:
                self._document.fault(where, f"expected {low} to be at most {high}")
        rule = kind.build(options, self._bounds) if len(self._document.faults) == before else _nothing
        return rule, kind, action == "drop"

    def _known(self, names: tuple[str, ...], fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
        for name in names:
            if name not in fields:
                self._document.fault(where, "expected names of its own fields in required, needs and apart")
        return names

    def _pairs(self, value: Any, where: str, fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        pairs: list[tuple[str, str]] = []
        for entry in value if isinstance(value, list) else [None]:
            if isinstance(entry, list) and len(entry) == 2 and all(isinstance(name, str) for name in entry):
                pairs.append((entry[0], entry[1]))
                self._known((entry[0], entry[1]), fields, where)
            else:
                self._document.fault(where, "expected a list of pairs of names")
        return tuple(pairs)


def _nothing(_: Any) -> str:
    """Stands for a rule that could not be built; the document then has a fault and the guards are never used."""
    return " is not allowed"


def _asks(value: Any) -> bool:
    """Whether a member asks for something: 0 does (``logprobs: 0`` is a request), null and false do not."""
    return value is not None and value is not False


def _unknown(name: str) -> Refusal:
    if PLAIN_NAME.match(name):
        return _refusal(name, " is not allowed")
    return Refusal("invalid_request", "The request has a member that is not allowed.")


def _refusal(name: str, fault: str) -> Refusal:
    return Refusal("invalid_request", f"{name}{fault}.", param=name)
