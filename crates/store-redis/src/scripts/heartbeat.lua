-- heartbeat: says that a broker is there, and answers who is.
--
-- KEYS 1 roll  2 own of the leader seat  3 assignment
-- ARGV 1 broker  2 ttl in milliseconds  3 what it says
-- Returns {now, {broker, age in milliseconds, what it said, ...}, {epoch, broker, until, expires} of the leader seat, assignment}
--
-- Time is the clock of Redis. What cannot be read is of nobody who is there, and is removed like what is over.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Removing comes first, so that a server without memory lets it go on.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %d ', now, now + tonumber(ARGV[2])) .. ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
local present = {}
for i = 1, #all, 2 do
  local said, over, from = string.match(all[i + 1], '^(%d+) (%d+) ()')
  if said and now < tonumber(over) then
    table.insert(present, all[i])
    table.insert(present, math.max(0, now - tonumber(said)))
    table.insert(present, string.sub(all[i + 1], from))
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return {now, present, redis.call('HMGET', KEYS[2], 'epoch', 'broker', 'until', 'expires'), redis.call('GET', KEYS[3])}
