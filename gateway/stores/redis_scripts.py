"""The keys of the Redis store and the three scripts that are all it runs there.

    {gw}:head      hash    schema, store (a random name), the two counters, number and seal of the newest audit line
    {gw}:keys      hash    id -> key as JSON, with the keyed hashes of its secrets
    {gw}:secrets   hash    keyed hash of a secret -> JSON text of its key's id
    {gw}:names     hash    name -> JSON list of the ids of the keys that ever had it
    {gw}:aliases   hash    alias -> its current revision as JSON
    {gw}:history:ALIAS     hash    number -> revision as JSON
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
ALIASES, AUDIT, MARKS = "{gw}:aliases", "{gw}:audit", "{gw}:marks"
ALL = (HEAD, KEYS, SECRETS, NAMES, ALIASES, AUDIT, MARKS)
CHANGED = "{gw}:changed"


class Command(NamedTuple):
    """One Redis command on one key."""

    verb: str
    key: str
    values: tuple[str | bytes | int | float, ...] = ()


def history_of(alias: str) -> str:
    """The key of an alias's revisions."""
    return "{gw}:history:" + alias


def packed(commands: Iterable[Command]) -> tuple[list[str], list[str | bytes | int | float]]:
    """The keys (the head first) and the flat values that a script takes a run of commands as.

    Each command is: how many values follow, its verb, the place of its key, its own values.
    """
    keys, values = [HEAD], list[str | bytes | int | float]()
    for verb, key, own in commands:
        if key not in keys:
            keys.append(key)
        values += (len(own) + 2, verb, keys.index(key) + 1, *own)
    return keys, values


MEET = Script("""
-- ARGV: schema, a name for a new store, the seal before the first line. Gives schema and name of the store found.
if not redis.acl_check_cmd then return redis.error_reply('TOO-OLD') end
if redis.call('EXISTS', KEYS[1]) == 0 then
  for i = 2, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 1 then return redis.error_reply('WRONGTYPE a key without a head') end
  end
  local zeros = {'keys', 0, 'aliases', 0, 'number', 0}
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'store', ARGV[2], 'seal', ARGV[3], unpack(zeros))
end
return redis.call('HMGET', KEYS[1], 'schema', 'store')
""")

READ = Script("""
-- ARGV: packed commands that read. Gives the head and each reply, all of one moment. The values of a whole hash come as
-- one JSON list: ten thousand replies of their own would take the client a hundred times as long to read.
local replies = {redis.call('HMGET', KEYS[1], 'store', 'keys', 'aliases', 'number', 'seal')}
local at = 1
while at <= #ARGV do
  local last = at + ARGV[at]
  local reply = redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, last))
  if ARGV[at + 1] == 'HVALS' then reply = '[' .. table.concat(reply, ',') .. ']' end
  replies[#replies + 1] = reply
  at = last + 1
end
return replies
""")

COMMIT = Script("""
-- ARGV: the seal that the writer has read, the channel, packed commands that write (HSET; XADD only as the first).
-- Gives 1, or 0 when another writer was first.
if redis.call('HGET', KEYS[1], 'seal') ~= ARGV[1] then return 0 end
-- Redis undoes nothing when a script fails half way, so what can fail is judged before the first write. What is left
-- (read-only, out of memory, too few replicas) fails the first write or none, and so may XADD with the id of a line
-- that is there already.
local kinds = {HSET = 'hash', XADD = 'stream'}
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
