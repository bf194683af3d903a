"""The Lua scripts of the shared limits, and the names of their keys.

All keys carry the hash tag ``{gw}``: they live in one slot, so that one script may touch them in a cluster. Time is the
server's, in seconds since 2026 so that a double keeps nanoseconds. A rate is a string, its TAT (see ``gcra``), and ends
with its key when it is whole; places are a sorted set of leases by when they end. Sums are those of ``gcra``: the two
are held together by a test.
"""

from __future__ import annotations

from gateway.limits import gcra
from gateway.redislink import Script

_NOW = """
local clock = redis.call('TIME')
local now = (clock[1] - 1767225600) + clock[2] / 1000000
local function keep(key, tat)
  if tat > now then
    redis.call('SET', key, string.format('%.17g', tat), 'PX', math.ceil((tat - now) * 1000) + 1)
  else
    redis.call('DEL', key)
  end
end
"""

# ARGV: lease, its seconds, then for each key: a rate's units, spacing and period; or the number of places, 0, 0.
# After them pairs of key number and lease: places known to be free whose release is still on its way.
# Answers 1 or 0 (admitted or not), then for each key by how many seconds its TAT is ahead of now, or its leases.
ADMIT = Script(
    _NOW
    + """
local after = 2 + 3 * #KEYS
for i = after + 1, #ARGV, 2 do
  redis.call('ZREM', KEYS[tonumber(ARGV[i])], ARGV[i + 1])
end
local admitted, marks, answer = 1, {}, {}
for i, key in ipairs(KEYS) do
  local units, spacing, period = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  if period == 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    local count = redis.call('ZCARD', key)
    answer[i] = tostring(count)
    if count >= units then admitted = 0 end
  else
    local tat = math.max(tonumber(redis.call('GET', key) or now), now)
    answer[i] = string.format('%.17g', tat - now)
    marks[i] = tat + units * spacing
    if marks[i] - now > period + """
    + str(gcra.GRACE)
    + """ * spacing then admitted = 0 end
  end
end
if admitted == 1 then
  local seconds = tonumber(ARGV[2])
  for i, key in ipairs(KEYS) do
    if marks[i] then
      keep(key, marks[i])
      answer[i] = string.format('%.17g', marks[i] - now)
    else
      redis.call('ZADD', key, now + seconds, ARGV[1])
      redis.call('PEXPIRE', key, seconds * 1000)
    end
  end
end
table.insert(answer, 1, tostring(admitted))
return answer
"""
)

# KEYS: the instance's mark, then rates and places. ARGV: the batch's number, then for each key: 'rate', seconds to give
# back, seconds to charge; or 'places', a count and as many leases. A batch that comes twice is counted once.
DELIVER = Script(
    _NOW
    + """
if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', 3600000)
local at = 2
for i = 2, #KEYS do
  local key = KEYS[i]
  if ARGV[at] == 'rate' then
    local back, charge = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local tat = tonumber(redis.call('GET', key) or now) - back
    if charge > 0 then tat = math.max(tat, now) + charge end
    keep(key, tat)
    at = at + 3
  else
    local count = tonumber(ARGV[at + 1])
    for j = at + 2, at + 1 + count do redis.call('ZREM', key, ARGV[j]) end
    at = at + 2 + count
  end
end
return 1
"""
)

# KEYS: places. ARGV: seconds, then for each key a count and as many leases.
RENEW = Script(
    _NOW
    + """
local seconds, at = tonumber(ARGV[1]), 2
for _, key in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  for j = at + 1, at + count do redis.call('ZADD', key, now + seconds, ARGV[j]) end
  redis.call('PEXPIRE', key, seconds * 1000)
  at = at + 1 + count
end
return 1
"""
)


def key_of(kind: str, holder: str) -> str:
    """The key of one limit of one holder."""
    return f"{{gw}}:limit:{kind}:{holder}"
