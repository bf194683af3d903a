"""What the faults of an answer do: small machines that see each act and say which acts take its place. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from loadtests.engine.acts import Act, Close, End, Event, Head, KeepAlive, Raw, Reply, Wait
from loadtests.engine.refusal import ErrorForms, Refusal, engine_died, shutting_down

Params = Mapping[str, Any]
FORMS = "error forms"
"""The parameter that says how the server writes errors; the set of faults adds it."""
Machine = Callable[[Act], Iterable[Act]]
DONE = b"data: [DONE]\n\n"
_Instead = Callable[[Event], Iterable[Act]]
_Whole = Callable[[Reply], Iterable[Act]]


class After:
    """Lets `events` events pass, then puts `instead` in the place of the next; a whole answer becomes `whole`.

    After a `final` change nothing follows.
    """

    def __init__(self, events: int, instead: _Instead, whole: _Whole, *, final: bool) -> None:
        self._left = events
        self._instead = instead
        self._whole = whole
        self._final = final
        self._done = False

    def __call__(self, act: Act) -> Iterable[Act]:
        if self._done:
            return () if self._final else (act,)
        if isinstance(act, Reply):
            self._done = True
            return self._whole(act)
        if not isinstance(act, Event):
            return (act,)
        if self._left:
            self._left -= 1
            return (act,)
        self._done = True
        return self._instead(act)


def break_off(*acts: Act) -> Callable[[Params], Machine]:
    """After so many events, or in the middle of a whole answer's body, these acts and nothing more."""
    return lambda params: After(int(params["after_events"]), lambda _: acts, _cut_and(acts), final=True)


def _cut_and(acts: tuple[Act, ...]) -> _Whole:
    return lambda reply: (replace(reply, cut=len(reply.body) // 2), *acts)


def change_one(params: Params, instead: _Instead, body: Callable[[bytes], bytes]) -> Machine:
    """Change the event after `after_events` others, or the body of a whole answer."""
    return After(
        int(params["after_events"]), instead, lambda reply: (replace(reply, body=body(reply.body)),), final=False
    )


def in_place(acts: Iterable[Act]) -> Machine:
    """In the place of the whole answer."""
    left = [tuple(acts)]
    return lambda act: left.pop() if left else ()


def before(acts: Iterable[Act]) -> Machine:
    """Before the answer."""
    left = [tuple(acts)]
    return lambda act: (*left.pop(), act) if left else (act,)


def each_event(change: Callable[[bytes], bytes]) -> Machine:
    """Change the bytes of each event, and of a whole answer."""

    def machine(act: Act) -> Iterable[Act]:
        if isinstance(act, Event):
            return (Event(change(act.data)),)
        if isinstance(act, Reply):
            return (replace(act, body=change(act.body)),)
        return (act,)

    return machine


def on_head(change: Callable[[Head | Reply], Iterable[Act]]) -> Machine:
    return lambda act: change(act) if isinstance(act, (Head, Reply)) else (act,)


def headers_late(_: Params) -> Machine:
    held: list[Act] = []

    def machine(act: Act) -> Iterable[Act]:
        if isinstance(act, Head):
            held.append(act)
            return ()
        waiting, held[:] = tuple(held), []
        return (*waiting, act)

    return machine


def truncated(params: Params) -> Machine:
    ending = (Wait(0.02), Close())

    def instead(event: Event) -> Iterable[Act]:
        half = event.data[: max(1, len(event.data) // 2)]
        return (Raw(b"%x\r\n" % len(event.data) + half), *ending)

    return After(int(params["after_events"]), instead, _cut_and(ending), final=True)


def malformed(params: Params) -> Machine:
    bad = str(params["text"]).encode() + b"\n\n"
    return change_one(params, lambda event: (Event(bad), event), lambda body: body[: len(body) // 2])


def spoil_utf8(data: bytes) -> bytes:
    """Two bytes that no UTF-8 text has, inside the JSON string where the text begins (or else before the line end)."""
    for mark in (b'"content":"', b'"text":"', b'"delta":"'):
        if mark in data:
            return data.replace(mark, mark + b"\xff\xfe", 1)
    return data.rstrip(b"\n") + b"\xff\xfe\n\n"


def huge_line(params: Params) -> Machine:
    size, piece = int(params["bytes"]), 65536

    def instead(event: Event) -> Iterable[Act]:
        yield event
        yield Event(b"data: ")
        for start in range(0, size, piece):
            yield Event(b"x" * min(piece, size - start))

    return change_one(params, instead, lambda _: b"x" * size)


def error_event_at(params: Params) -> Machine:
    forms: ErrorForms = params[FORMS]
    broken = engine_died()
    instead = (Event(forms.event(broken)), Event(DONE), End())
    whole = (Reply(500, forms.body(broken)),)
    return After(int(params["after_events"]), lambda _: instead, lambda _: whole, final=True)


def merged(params: Params) -> Machine:
    size = int(params["events"])
    held: list[bytes] = []

    def machine(act: Act) -> Iterable[Act]:
        if isinstance(act, Event):
            held.append(act.data)
            if len(held) < size:
                return ()
            joined, held[:] = b"".join(held), []
            return (Event(joined),)
        if held:
            joined, held[:] = b"".join(held), []
            return (Event(joined), act)
        return (act,)

    return machine


def split(params: Params) -> Machine:
    pause = float(params["pause"])
    sizes = tuple(int(size) for size in params["sizes"])

    def machine(act: Act) -> Iterable[Act]:
        if not isinstance(act, Event):
            yield act
            return
        framed = b"%x\r\n" % len(act.data) + act.data + b"\r\n"
        start = turn = 0
        while start < len(framed):
            size = _odd_cut(framed, start, sizes[turn % len(sizes)])
            yield Raw(framed[start : start + size])
            yield Wait(pause)
            start += size
            turn += 1

    return machine


def _odd_cut(data: bytes, start: int, size: int) -> int:
    """The length of the next piece: cut inside the next multi-byte character where there is one in reach."""
    for place in range(start + 1, min(start + 4 * size, len(data))):
        if data[place] & 0xC0 == 0x80:
            return place - start
    return size


def status(params: Params) -> Machine:
    refusal = Refusal(int(params["status"]), str(params["message"]), str(params["type"]))
    headers = tuple((str(name).encode(), str(value).encode()) for name, value in dict(params["headers"]).items())
    forms: ErrorForms = params[FORMS]
    return in_place((Reply(refusal.status, forms.body(refusal), extra=headers),))


def wrong_model(params: Params) -> Machine:
    def change(data: bytes) -> bytes:
        before, mark, rest = data.partition(b'"model":"')
        if not mark:
            return data
        return before + mark + str(params["model"]).encode() + rest[rest.index(b'"') :]

    return each_event(change)


def informational(params: Params) -> Machine:
    status = int(params["status"])
    one = b"HTTP/1.1 %d Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n" % status
    return before([Raw(one * int(params["responses"]))])


def giant_headers(params: Params) -> Machine:
    size, count = int(params["bytes"]), int(params["headers"])
    extra = tuple((b"x-padding-%d" % number, b"p" * (size // count)) for number in range(count))
    return on_head(lambda act: (replace(act, extra=(*act.extra, *extra)),))


def both_lengths(_: Params) -> Machine:
    def change(act: Head | Reply) -> Iterable[Act]:
        if isinstance(act, Head):
            return (replace(act, length_too=5),)
        return (replace(act, chunked_too=True),)

    return on_head(change)


def bytes_after_end(params: Params) -> Machine:
    extra = Raw(str(params["text"]).encode())
    return lambda act: (act, extra) if isinstance(act, (End, Reply)) else (act,)


def done_changed(times: int) -> Machine:
    return lambda act: (act,) * times if isinstance(act, Event) and _is_done(act.data) else (act,)


def _is_done(data: bytes) -> bool:
    """Whether an event is the end marker, also when another fault has changed its line ends or spaces."""
    return data.strip().removeprefix(b"data:").strip() == b"[DONE]"


def keepalive(params: Params) -> Machine:
    seconds = float(params["interval"])
    return lambda act: (act, KeepAlive(seconds)) if isinstance(act, Head) else (act,)


def draining(params: Params) -> Machine:
    forms: ErrorForms = params[FORMS]
    return in_place((Reply(500, forms.body(shutting_down()), cors=False),))


def run_machines(machines: list[Machine], act: Act) -> list[Act]:
    """The acts that take the place of `act` after every machine has seen it."""
    acts: list[Act] = [act]
    for machine in machines:
        acts = [out for each in acts for out in machine(each)]
    return acts
