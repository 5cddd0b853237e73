-- renew: extends the lease of the current epoch.
--
-- KEYS 1 own
-- ARGV 1 epoch  2 token, or '' if the broker does not know it  3 ttl in milliseconds
--      4 until, by the broker's clock
-- Returns {0, broker} extended · {1} the epoch is no longer current

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token', 'broker')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {1}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
-- A lease must not be lost because memory is full.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'until', ARGV[4],
  'expires', string.format('%d', now + tonumber(ARGV[3])))
return {0, own[3]}
