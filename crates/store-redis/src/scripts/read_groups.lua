-- read_groups: returns the groups of the dead letters of a namespace.
--
-- KEYS 1 counted  2 groups  3 dead
-- ARGV 1 namespace
-- Returns {1 if all letters are counted, else 0; {the group of all others, or nil; the groups}},
-- each as `letter_groups.lua` describes it

local counted = redis.call('HMGET', KEYS[1], 'epoch', 'at')
local complete = counted[1] and not counted[2] or redis.call('EXISTS', KEYS[3]) == 0
local fields = {ARGV[1] .. '\0other'}
local names = redis.call('HGET', KEYS[2], ARGV[1] .. '\0#') or ''
for i = 1, #names, 16 do
  fields[#fields + 1] = ARGV[1] .. '\0' .. string.sub(names, i, i + 15)
end
return {complete and 1 or 0, redis.call('HMGET', KEYS[2], unpack(fields))}
