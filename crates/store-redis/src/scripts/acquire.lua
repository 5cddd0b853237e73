-- acquire: acquires a seat that is free, whose lease has expired, or that the broker itself holds.
--
-- KEYS 1 own, and for a partition: 2 counts  3 namespaces  4 counted  5 due-hours  6 due-log
--      7 groups  8 grouped  9 due  10 paused  11 dead
-- ARGV 1 broker  2 ttl in milliseconds  3 until, by the broker's clock  4 token
--      5 the smallest epoch to grant  6 the largest epoch that exists
--      7 '1' if epochs are part of task ids, so that none may be granted twice; else '0'
--      8 the start of the keys of series
-- Returns {0, epoch, 1 if the last epoch could not be read, else 0; up to where due tasks, series
--          and groups of dead letters are counted, '' if all are} acquired
--         {1, epoch} another broker holds it · {2, epoch} no epoch is left
--         {3} the last epoch cannot be read, the broker has seen none, and ARGV 7 is '1'
--
-- The ttl counts by the clock of Redis. Epochs only grow: the new one is larger than the last, and
-- at least ARGV 5, because the broker has seen larger ones if Redis has lost some.

-- By how much an epoch exceeds the largest that the broker has seen if the last one cannot be read:
-- more than other brokers can have acquired since.
local UNSEEN_MAX = 1000

local own = redis.call('HMGET', KEYS[1], 'epoch', 'broker', 'expires')
local last = own[1] or '0'
local epoch = string.match(last, '^%d+$') and tonumber(last)
local readable = epoch and epoch <= tonumber(ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if own[2] and own[2] ~= ARGV[1] and now < (tonumber(own[3] or '0') or 0) then
  return {1, readable and last or '0'}
end
local next = tonumber(ARGV[5])
if readable then
  next = math.max(epoch + 1, next)
elseif next > 1 or ARGV[7] == '0' then
  next = next + UNSEEN_MAX
else
  return {3}
end
if next > tonumber(ARGV[6]) then
  return {2, readable and last or '0'}
end
local granted = string.format('%d', next)
-- Removes first: without free memory, Redis accepts removals, and lets a script that has written
-- continue.
-- Stored tasks need an owner to fire, with or without free memory.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'epoch', granted, 'broker', ARGV[1], 'until', ARGV[3],
  'token', ARGV[4], 'batch', '0', 'repair', '0',
  'expires', string.format('%d', now + tonumber(ARGV[2])))

-- An earlier version did not write the set of namespaces: fills it from the counts, once.
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
  for _, field in ipairs(redis.pcall('HKEYS', KEYS[2])) do
    local namespace = string.match(field, '^[^%z]+')
    if namespace then
      redis.pcall('ZADD', KEYS[3], 0, namespace)
    end
  end
end

-- The owner of the last epoch kept the counts, or it was of an earlier version and did not: then
-- the new owner counts before it starts.
local at = ''
if KEYS[4] then
  local counted = redis.pcall('HMGET', KEYS[4], 'epoch', 'at')
  if counted[1] == last then
    at = counted[2] or ''
  else
    redis.call('DEL', KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
    for _, namespace in ipairs(redis.pcall('ZRANGE', KEYS[3], 0, -1)) do
      redis.call('DEL', ARGV[8] .. namespace)
    end
    if redis.call('EXISTS', KEYS[9], KEYS[10], KEYS[11]) > 0 then
      at = 'due'
      redis.call('HSET', KEYS[4], 'at', at)
    end
  end
  redis.call('HSET', KEYS[4], 'epoch', granted)
end
return {0, granted, readable and 0 or 1, at}
