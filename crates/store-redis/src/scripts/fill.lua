-- fill: counts some tasks or dead letters of a partition that an earlier version has written.
--
-- Runs behind `letter_groups.lua`.
--
-- KEYS 1 own  2 counted  3 due-log  4 groups  5 grouped  6 letters  then the series of namespaces
-- ARGV 1 epoch  2 token  3 ttl in milliseconds
--      4 what was counted before this page  5 what is counted after it, '' if that is everything
--      6 the differences of due counts, as batches append them, or ''
--      7 the number of arguments about letters: (namespace, fire, group, died_at)
--      then for each key of series a count n and n arguments: (fire_at, id)
-- Returns {0, bytes of the log} counted · {1} this page was counted before
--         {2, epoch} another broker owns the partition

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or own[2] ~= ARGV[2] then
  return {2, own[1] or '0'}
end
if redis.call('HGET', KEYS[2], 'at') ~= ARGV[4] then
  return {1}
end
-- Without free memory, Redis lets a script continue that has removed first.
redis.call('HDEL', KEYS[1], '')
-- The owner has no lease yet that it could renew.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'expires', string.format('%d', now + tonumber(ARGV[3])))
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[2], 'at')
else
  redis.call('HSET', KEYS[2], 'at', ARGV[5])
end
local bytes = redis.call('APPEND', KEYS[3], ARGV[6])
local letters = letter_groups(KEYS[4], KEYS[5])
local at = 7 + tonumber(ARGV[7])
for i = 8, at, 4 do
  if redis.call('HEXISTS', KEYS[6], ARGV[i + 1]) == 1
    and redis.call('HEXISTS', KEYS[5], ARGV[i + 1]) == 0 then
    letters:add(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]))
  end
end
letters:finish()
for key = 7, #KEYS do
  local count = tonumber(ARGV[at + 1])
  redis.call('ZADD', KEYS[key], unpack(ARGV, at + 2, at + 1 + count))
  at = at + 1 + count
end
return {0, bytes}
