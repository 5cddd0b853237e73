-- propose: keeps who should hold what, as the leader says.
--
-- KEYS 1 own of the leader seat  2 assignment
-- ARGV 1 epoch  2 token, or '' if the broker does not know it  3 the assignment
-- Returns {0} kept · {1} the epoch is no longer the seat's, and nothing happened

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {1}
end
-- Removing comes first, so that a server without memory lets it go on.
redis.call('HDEL', KEYS[1], '')
redis.call('SET', KEYS[2], ARGV[3])
return {0}
