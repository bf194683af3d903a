"""The scenarios, as a table, and the request bytes they put on the wire. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from loadtests.bench.named import named

MODEL = "internal-general"
"""The served model's own name; the gateway makes an alias of the same name by itself."""

VARIANTS = 16
"""Different prompts per scenario, so that no target answers all requests from one remembered prefix."""

PROSE = "The quick gateway forwards a prompt to the replica that answers soonest, and keeps no word of it. "
SYSTEM = "You are a careful assistant. Answer in short sentences and name your sources.\n"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load: a closed loop over `connections` keep-alive connections."""

    name: str
    summary: str
    connections: int = 32
    body_bytes: int = 700
    """Size of the request body."""
    chunks: int = 0
    """Events of the streamed answer before ``[DONE]``; 0 for an answer in one piece."""
    status: int = 200
    """What a correct target answers."""
    wrong_key: bool = False
    only: frozenset[str] = frozenset()
    """Names of the targets that it makes sense for; empty for all."""
    needs: tuple[str, ...] = ()
    """Scenarios whose figures its own arithmetic takes in."""

    @property
    def stream(self) -> bool:
        return self.chunks > 0

    def suits(self, target: str) -> bool:
        return not self.only or target in self.only


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("chat", "chat request of 700 bytes, answer of about 750, 32 connections"),
    Scenario("chat-1", "the same over one connection: the added latency", connections=1),
    Scenario(
        "stream", "streamed chat, 32 connections, 200 chunks of about 230 bytes each", chunks=200, needs=("chat",)
    ),
    Scenario(
        "refused",
        "request with a wrong key, answered 401 (gateway only)",
        status=401,
        wrong_key=True,
        only=frozenset({"gateway"}),
        needs=("chat",),
    ),
    Scenario("large", "chat request of 256 KiB, answer of about 750 bytes, 32 connections", body_bytes=256 * 1024),
)


class UnknownScenario(ValueError):
    """A name that is not in the table."""


def by_name(name: str) -> Scenario:
    """The scenario of that name. Raises `UnknownScenario`."""
    return named(SCENARIOS, [name], "scenario", UnknownScenario)[0]


def select(names: Iterable[str]) -> tuple[Scenario, ...]:
    """The named scenarios and those that they need, in the table's order; all when no name is given.

    Raises `UnknownScenario`.
    """
    wanted = named(SCENARIOS, names, "scenario", UnknownScenario)
    if not wanted:
        return SCENARIOS
    needed = [need for scenario in wanted for need in (scenario.name, *scenario.needs)]
    return named(SCENARIOS, needed, "scenario", UnknownScenario)


def chat_body(size: int, variant: int, *, stream: bool) -> bytes:
    """A chat request of exactly `size` bytes of JSON. The question differs by `variant` from its first word on."""

    def render(text: str) -> bytes:
        return orjson.dumps(
            {
                "model": MODEL,
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
                "max_tokens": 256,
                "temperature": 0.7,
                "stream": stream,
            }
        )

    room = size - len(render(""))
    opening = f"Question {variant:03d}: "
    text = (opening + PROSE * (room // len(PROSE) + 1))[: max(room, 0)]
    return render(text)


def http_request(port: int, body: bytes, credential: str) -> bytes:
    """The whole POST as an OpenAI client would send it, less the headers that nobody reads."""
    authorization = f"authorization: Bearer {credential}\r\n" if credential else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"accept: application/json\r\ncontent-type: application/json\r\n{authorization}"
        f"user-agent: gateway-bench\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def requests_of(scenario: Scenario, port: int, credential: str) -> tuple[bytes, ...]:
    """The precomputed requests of a scenario, to be sent in turn."""
    key = wrong(credential) if scenario.wrong_key else credential
    return tuple(
        http_request(port, chat_body(scenario.body_bytes, variant, stream=scenario.stream), key)
        for variant in range(VARIANTS)
    )


def wrong(credential: str) -> str:
    """A key of the right form that nobody was given: the most work that a refusal can cost."""
    return credential[:-1] + ("A" if credential[-1:] != "A" else "B")
