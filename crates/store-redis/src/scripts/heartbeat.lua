-- heartbeat: records the heartbeat of a broker, and returns all members.
--
-- KEYS 1 roll  2 own of the leader seat  3 assignment
-- ARGV 1 broker  2 ttl in milliseconds  3 heartbeat
-- Returns {now,
--          {broker, age in milliseconds, heartbeat, ...},
--          {epoch, broker, until, expires} of the leader seat,
--          assignment}
--
-- Time is the clock of Redis. Entries that have expired or cannot be read are removed.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
redis.call('HDEL', KEYS[1], '')
local times = string.format('%d %d ', now, now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], ARGV[1], times .. ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
local members = {}
for i = 1, #all, 2 do
  local received, expires, from = string.match(all[i + 1], '^(%d+) (%d+) ()')
  if received and now < tonumber(expires) then
    table.insert(members, all[i])
    table.insert(members, math.max(0, now - tonumber(received)))
    table.insert(members, string.sub(all[i + 1], from))
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
local leader = redis.call('HMGET', KEYS[2], 'epoch', 'broker', 'until', 'expires')
return {now, members, leader, redis.call('GET', KEYS[3])}
