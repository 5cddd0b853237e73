-- release: ends a lease. Writes under its epoch are accepted until the seat is acquired again.
--
-- KEYS 1 own
-- ARGV 1 epoch  2 token, or '' if the broker does not know it
-- Returns {0} released · {1} the epoch is no longer current; nothing changed

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {1}
end
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'until', '0', 'expires', '0')
return {0}
