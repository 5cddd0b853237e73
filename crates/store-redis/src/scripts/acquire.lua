-- acquire: acquires a seat that is free, whose lease has expired, or that the broker itself holds.
--
-- KEYS 1 own
-- ARGV 1 broker  2 ttl in milliseconds  3 until, by the broker's clock  4 token
--      5 the smallest epoch to grant  6 the largest epoch that exists
-- Returns {0, epoch} acquired · {1, epoch} another broker holds it · {2, epoch} no epoch is left
--
-- The ttl counts by the clock of Redis. Epochs only grow: the new one is larger than the last, and
-- at least ARGV 5, because the broker has seen larger ones if Redis has lost some.

local own = redis.call('HMGET', KEYS[1], 'epoch', 'broker', 'expires')
local epoch = tonumber(own[1] or '0')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if own[2] and own[2] ~= ARGV[1] and now < tonumber(own[3] or '0') then
  return {1, tostring(epoch)}
end
local next = math.max(epoch + 1, tonumber(ARGV[5]))
if next > tonumber(ARGV[6]) then
  return {2, tostring(epoch)}
end
local granted = string.format('%d', next)
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
-- Stored tasks need an owner to fire, with or without free memory.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'epoch', granted, 'broker', ARGV[1], 'until', ARGV[3],
  'token', ARGV[4], 'batch', '0', 'expires', string.format('%d', now + tonumber(ARGV[2])))
return {0, granted}
