-- find: what names lead to.
--
-- KEYS 1 names  2 late
-- ARGV names, no more than Lua takes on its stack
-- Returns {values, postponements}, in the order of the names; no value where a name leads nowhere

local values = redis.call('HMGET', KEYS[1], unpack(ARGV))
local ids = {}
for i = 1, #ARGV do
  -- The id stands first in the value. An empty one is nobody's.
  ids[i] = string.sub(values[i] or '', 1, 16)
end
return {values, redis.call('HMGET', KEYS[2], unpack(ids))}
