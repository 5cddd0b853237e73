-- get: returns tasks by id.
--
-- KEYS 1 tasks  2 late
-- ARGV ids, no more than fit on the Lua stack
-- Returns {values, postponements}, in the order of the ids

return {redis.call('HMGET', KEYS[1], unpack(ARGV)), redis.call('HMGET', KEYS[2], unpack(ARGV))}
