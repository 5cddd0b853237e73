-- fold: replaces hours of due counts, and removes from the log what these now include.
--
-- KEYS 1 own  2 counted  3 due-hours  4 due-log
-- ARGV 1 epoch  2 token, or '' if the sender does not know it
--      3 how often the log was folded when it was read  4 bytes of the log that are included
--      5 the number of hours that are replaced, then these, then those that replace them
-- Returns {0} folded · {1} the log was folded meanwhile · {2, epoch} another broker owns the
-- partition

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {2, own[1] or '0'}
end
local folds = redis.call('HGET', KEYS[2], 'folds') or '0'
local bytes = tonumber(ARGV[4])
if folds ~= ARGV[3] or redis.call('STRLEN', KEYS[4]) < bytes then
  return {1}
end
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
redis.call('HDEL', KEYS[2], '')
local STEP = 4000
local replaced = 5 + tonumber(ARGV[5])
for i = 6, replaced, STEP do
  redis.call('ZREM', KEYS[3], unpack(ARGV, i, math.min(i + STEP - 1, replaced)))
end
local members = {}
for i = replaced + 1, #ARGV do
  members[#members + 1] = 0
  members[#members + 1] = ARGV[i]
end
for i = 1, #members, STEP do
  redis.call('ZADD', KEYS[3], unpack(members, i, math.min(i + STEP - 1, #members)))
end
local rest = redis.call('GETRANGE', KEYS[4], bytes, -1)
if rest == '' then
  redis.call('DEL', KEYS[4])
else
  redis.call('SET', KEYS[4], rest)
end
redis.call('HSET', KEYS[2], 'folds', string.format('%d', (tonumber(folds) or 0) + 1))
return {0}
