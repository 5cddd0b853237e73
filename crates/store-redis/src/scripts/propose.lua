-- propose: stores the assignment that the leader proposes.
--
-- KEYS 1 own of the leader seat  2 assignment
-- ARGV 1 epoch  2 token, or '' if the broker does not know it  3 the assignment
-- Returns {0} stored · {1} the epoch is no longer current; nothing changed

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {1}
end
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
redis.call('HDEL', KEYS[1], '')
redis.call('SET', KEYS[2], ARGV[3])
return {0}
