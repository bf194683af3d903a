"""What instances tell each other of their load, over the Redis that they share.

One hash has the newest report of each instance; what stands before a report is when it came, by the server's clock. One
stream has the hints of all, of which each instance reads what is new to it. One script does it all in one round trip,
and removes reports that are too old, too long or without a time, so that nothing stays that nobody renews; both keys
end when nobody has told anything for a while. A store in a file has nothing of the kind: its instances are processes of
one host, and go by what the engines say.

Beside what the store needs, the gateway's user needs ``+time +pexpire`` for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.redislink import LinkFault, RedisLink, Script
from gateway.stateurl import RedisPlace
from gateway.stores.interfaces import StoreUnavailable

_TIMEOUT = 0.1  # seconds for each answer
_DEADLINE = 1.5 * _TIMEOUT  # of an exchange: an answer that just came in time is not thrown away

LOAD = "{gw}:load"
"""Hash: an instance -> 13 digits, the server's milliseconds when it told, and its report."""
HINTS = "{gw}:hints"
"""Stream: an instance, and hints of it."""

_KEPT_HINTS = 1_024  # entries of the stream
_HINTS_EXPIRY = 600_000  # ms after the newest
_AT_ONCE = 128  # entries of the stream that are read in one exchange at most
_FIRST = b"0-0"
_MOST_UNFIT = 1 << 32  # more entries than a hash can have
_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")

# ARGV: instance, its report (empty: it has nothing), the expiry in ms, the most bytes of a report, the most reports;
# its hints (empty: none), the id of the last entry that it has read, the most bytes of hints, the most entries to give,
# the most to keep, their expiry in ms. Gives how many entries of both were not fit to be given, the id of the last
# entry read, the hints, and ages in ms with reports in turn.
EXCHANGE = Script("""
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local expiry, longest, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local entries = redis.call('HGETALL', KEYS[1])
local reports, gone, unfit, own = {}, {}, 0, false
for i = 1, #entries, 2 do
  local name, entry = entries[i], entries[i + 1]
  local stamp = string.sub(entry, 1, 13)
  if name == ARGV[1] then
    own = true
  elseif #entry > 13 + longest or not string.find(stamp, '^%d%d%d%d%d%d%d%d%d%d%d%d%d$') then
    unfit = unfit + 1
    gone[#gone + 1] = name
  elseif now - stamp < 0 or now - stamp >= expiry then
    gone[#gone + 1] = name
  elseif #reports >= 2 * most then
    unfit = unfit + 1
  else
    reports[#reports + 1] = now - stamp
    reports[#reports + 1] = string.sub(entry, 14)
  end
end
for first = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, first, math.min(first + 999, #gone)))
end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%013.0f', now) .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], expiry)
elseif own then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
local hints, last = {}, ARGV[7]
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '(' .. last, '+', 'COUNT', ARGV[9])) do
  local pair = entry[2]
  last = entry[1]
  if #pair ~= 2 or #pair[2] > tonumber(ARGV[8]) then
    unfit = unfit + 1
  elseif pair[1] ~= ARGV[1] then
    hints[#hints + 1] = pair[2]
  end
end
-- Behind an id that no clock has given, the server can give no other: the stream begins anew.
if string.find(last, '^' .. string.rep('%d', 14)) then
  redis.call('DEL', KEYS[2])
  last, unfit = '0-0', unfit + 1
end
if ARGV[6] ~= '' then
  local tell = {'XADD', KEYS[2], 'MAXLEN', ARGV[10], '*', ARGV[1], ARGV[6]}
  local told = redis.pcall(unpack(tell))
  if told.err and string.find(told.err, 'exhausted') then
    redis.call('DEL', KEYS[2])
    told = redis.pcall(unpack(tell))
  end
  if told.err then
    return told
  end
  redis.call('PEXPIRE', KEYS[2], ARGV[11])
end
return {unfit, last, hints, reports}
""")


class Bounds(NamedTuple):
    """Of what is kept and given: seconds until a report ends, bytes of one and of hints, and how many reports."""

    expiry: float
    report: int
    hints: int
    instances: int


class Told(NamedTuple):
    """What others told: their reports, each with its age in seconds, and hints that are new to this instance.

    ``unfit`` counts entries that no instance of ours has made.
    """

    reports: Sequence[tuple[bytes, float]]
    hints: Sequence[bytes]
    unfit: int


class RedisLoad:
    """The exchange as one instance sees it, under a ``name`` that no other has. Nothing is asked before it is used."""

    def __init__(self, place: RedisPlace, name: str, bounds: Bounds) -> None:
        self._link = RedisLink(place, timeout=_TIMEOUT, connections=1)
        self._name = name
        self._bounds = bounds
        self._last = _FIRST

    async def exchange(self, report: bytes, hints: bytes) -> Told:
        """Tell the own report and hints, either empty if there is nothing to tell, and hear those of the others.

        Raises ``StoreUnavailable``. After that hints may come again: what there is now may be another Redis.
        """
        bounds, last, self._last = self._bounds, self._last, _FIRST
        ours = (self._name, report, int(bounds.expiry * 1000), bounds.report, bounds.instances)
        stream = (hints, last, bounds.hints, _AT_ONCE, _KEPT_HINTS, _HINTS_EXPIRY)
        try:
            async with asyncio.timeout(_DEADLINE):
                answer = await self._link.evaluate(EXCHANGE, [LOAD, HINTS], *ours, *stream)
            last, told = _read(answer)
        except LinkFault as fault:
            raise self._unavailable(fault) from fault
        except TimeoutError:
            raise self._unavailable(LinkFault("TIMEOUT")) from None
        except (TypeError, ValueError, OverflowError):
            raise self._unavailable(LinkFault("PROTOCOL")) from None
        self._last = last
        return told

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._link.close()

    def _unavailable(self, fault: LinkFault) -> StoreUnavailable:
        return StoreUnavailable(f"state store Redis {self._link.place} {fault.reason}.")


def _read(answer: Any) -> tuple[bytes, Told]:
    """The id of the last entry, and what was told. Raises ``TypeError`` or ``ValueError`` for any other answer."""
    unfit, last, hints, reports = answer
    texts = all(isinstance(each, bytes) for each in (*hints, *reports[1::2]))
    if _ID.fullmatch(last) is None or not texts or not 0 <= int(unfit) <= _MOST_UNFIT:
        raise ValueError("not an answer of the script")
    pairs = [(report, int(age) / 1000) for age, report in zip(reports[::2], reports[1::2], strict=True)]
    return last, Told(pairs, hints, int(unfit))
