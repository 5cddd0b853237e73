-- acquire: takes a seat that is free, whose lease is over, or that the broker itself held.
--
-- KEYS 1 own
-- ARGV 1 broker  2 ttl in milliseconds  3 until, by the broker's clock  4 token  5 the least epoch it may have
--      6 the largest epoch that there can be
-- Returns {0, epoch} taken · {1, epoch} held by another · {2, epoch} there is no epoch left
--
-- The ttl counts by the clock of Redis. Epochs only grow: one more than the last, and no less than the broker proposes, which
-- has seen larger ones if Redis has lost some.

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
local word = string.format('%d', next)
-- Removing comes first, so that a server without memory lets it go on: what is there must have an owner to be fired.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'epoch', word, 'broker', ARGV[1], 'until', ARGV[3], 'token', ARGV[4], 'batch', '0',
  'expires', string.format('%d', now + tonumber(ARGV[2])))
return {0, word}
