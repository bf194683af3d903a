"""The keys of the Redis store and the four scripts that are all it runs there.

    {gw}:head      hash    schema, store (a random name), the counters, number and seal of the newest audit line
    {gw}:keys      hash    id -> key as JSON, with the keyed hashes of its secrets
    {gw}:secrets   hash    keyed hash of a secret -> JSON text of its key's id
    {gw}:names     hash    name -> JSON list of the ids of the keys that ever had it
    {gw}:aliases   hash    alias -> its current revision as JSON
    {gw}:history:ALIAS     hash    number -> revision as JSON, also of a deleted alias
    {gw}:deletions hash    alias -> its last deletion as a JSON list
    {gw}:uses:ALIAS        hash    number -> Unix seconds when the revision last served
    {gw}:engines   hash    URL -> the order about the engine there as JSON
    {gw}:instances hash    id -> what the instance said last, as JSON
    {gw}:audit     stream  the audit trail; the line's number is its id
    {gw}:marks     hash    version of the pepper -> its mark
    {gw}:changed   channel told of each write

The braces make a cluster keep them all on one node. Scripts name their keys, as a cluster asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.redislink import Script

HEAD, KEYS, SECRETS, NAMES = "{gw}:head", "{gw}:keys", "{gw}:secrets", "{gw}:names"
ALIASES, DELETIONS, AUDIT, MARKS = "{gw}:aliases", "{gw}:deletions", "{gw}:audit", "{gw}:marks"
ENGINES, INSTANCES = "{gw}:engines", "{gw}:instances"
ALL = (HEAD, KEYS, SECRETS, NAMES, ALIASES, DELETIONS, AUDIT, MARKS, ENGINES, INSTANCES)
CHANGED = "{gw}:changed"


class Command(NamedTuple):
    """One Redis command on one key."""

    verb: str
    key: str
    values: tuple[str | bytes | int | float, ...] = ()


def history_of(alias: str) -> str:
    """The key of an alias's revisions."""
    return "{gw}:history:" + alias


def uses_of(alias: str) -> str:
    """The key of when an alias's revisions last served."""
    return "{gw}:uses:" + alias


def packed(commands: Iterable[Command]) -> tuple[list[str], list[str | bytes | int | float]]:
    """The keys (the head first) and the flat values that a script takes a run of commands as.

    Each command is: how many values follow, its verb, the place of its key, its own values.
    """
    places, values = {HEAD: 1}, list[str | bytes | int | float]()
    for verb, key, own in commands:
        values += (len(own) + 2, verb, places.setdefault(key, len(places) + 1), *own)
    return list(places), values


MEET = Script("""
-- ARGV: schema, a name for a new store, the seal before the first line. Gives schema and name of the store found. An
-- older schema becomes this one: there is nothing to convert, but a gateway that knows only schema 1 would give the
-- numbers of a deleted alias again, over its history, so it must not open the store any more.
if not redis.acl_check_cmd then return redis.error_reply('TOO-OLD') end
if redis.call('EXISTS', KEYS[1]) == 0 then
  for i = 2, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 1 then return redis.error_reply('WRONGTYPE a key without a head') end
  end
  local zeros = {'keys', 0, 'aliases', 0, 'fleet', 0, 'number', 0}
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'store', ARGV[2], 'seal', ARGV[3], unpack(zeros))
end
local found = redis.call('HMGET', KEYS[1], 'schema', 'store')
if found[2] and (tonumber(found[1] or '') or 0) > 0 and tonumber(found[1]) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'schema', ARGV[1])
  found[1] = ARGV[1]
end
return found
""")

READ = Script("""
-- ARGV: packed commands that read. Gives the head and each reply, all of one moment. The values of a whole hash come as
-- JSON lists of some hundred each: ten thousand replies would take the client a hundred times as long to read, and one
-- list of all would hold up its other work while it is parsed.
local replies = {redis.call('HMGET', KEYS[1], 'store', 'keys', 'aliases', 'fleet', 'number', 'seal')}
local at = 1
while at <= #ARGV do
  local last = at + ARGV[at]
  local reply = redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, last))
  if ARGV[at + 1] == 'HVALS' then
    local lists = {}
    for first = 1, #reply, 250 do
      lists[#lists + 1] = '[' .. table.concat(reply, ',', first, math.min(first + 249, #reply)) .. ']'
    end
    reply = lists
  end
  replies[#replies + 1] = reply
  at = last + 1
end
return replies
""")

COMMIT = Script("""
-- ARGV: the seal that the writer has read, the channel, packed commands that write (HSET, HDEL; XADD only as the
-- first). Gives 1, or 0 when another writer was first.
if redis.call('HGET', KEYS[1], 'seal') ~= ARGV[1] then return 0 end
-- Redis undoes nothing when a script fails half way, so what can fail is judged before the first write. What is left
-- (read-only, out of memory, too few replicas) fails the first write or none, and so may XADD with the id of a line
-- that is there already.
local kinds = {HSET = 'hash', HDEL = 'hash', XADD = 'stream'}
local commands, at = {}, 3
if not redis.acl_check_cmd('PUBLISH', ARGV[2], '') then return redis.error_reply('NOPERM channel') end
while at <= #ARGV do
  local last = at + ARGV[at]
  local verb, key = ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])]
  local command = {verb, key, unpack(ARGV, at + 3, last)}
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= kinds[verb] then return redis.error_reply('WRONGTYPE ' .. key) end
  if not redis.acl_check_cmd(unpack(command)) then return redis.error_reply('NOPERM ' .. verb) end
  commands[#commands + 1] = command
  at = last + 1
end
for i, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'specified in XADD', 1, true) then return redis.error_reply('DAMAGED trail') end
    return reply
  end
end
redis.call('PUBLISH', ARGV[2], '')
return 1
""")

ASIDE = Script("""
-- ARGV: the name of the store, packed commands that write what the trail does not tell of: HSET, HDEL, and HMAX with
-- one field and a number, which keeps the greater one. Gives their replies, or 0 when the store is not that one: what
-- would be written then would pass for another program's data. The head stays, so that no other write begins again.
if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then return 0 end
local replies, at = {}, 2
while at <= #ARGV do
  local last = at + ARGV[at]
  local verb, key, field, value = ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], ARGV[at + 3], ARGV[at + 4]
  if verb ~= 'HMAX' then
    replies[#replies + 1] = redis.call(verb, key, unpack(ARGV, at + 3, last))
  elseif tonumber(value) > (tonumber(redis.call('HGET', key, field) or '') or -1) then
    replies[#replies + 1] = redis.call('HSET', key, field, value)
  else
    replies[#replies + 1] = 0
  end
  at = last + 1
end
return replies
""")
