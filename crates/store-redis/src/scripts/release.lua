-- release: gives a seat back. Writes under its epoch go on being accepted until somebody acquires the seat.
--
-- KEYS 1 own
-- ARGV 1 epoch  2 token, or '' if the broker does not know it
-- Returns {0} given back · {1} the epoch is no longer the seat's, and nothing happened

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {1}
end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'until', '0', 'expires', '0')
return {0}
