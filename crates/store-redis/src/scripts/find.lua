-- find: returns the heads of tasks by name.
--
-- KEYS 1 names  2 late
-- ARGV names, no more than fit on the Lua stack
-- Returns {values, postponements}, in the order of the names; nil for a name that is free

local values = redis.call('HMGET', KEYS[1], unpack(ARGV))
local ids = {}
for i = 1, #ARGV do
  -- The value starts with the id. No task has the empty id.
  ids[i] = string.sub(values[i] or '', 1, 16)
end
return {values, redis.call('HMGET', KEYS[2], unpack(ids))}
