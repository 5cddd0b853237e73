-- history: how fires of a task ended, newest by nominal time first.
--
-- KEYS 1 tasks  2 history  3 fires
-- ARGV 1 the task's id  2 the fire that the id leads to
--      3 the newest fire to begin with, as ZREVRANGEBYLEX takes it  4 the oldest  5 how many of the others at most
-- Returns {record of the first or nothing; fires of the others; their records}

local fires = redis.call('ZREVRANGEBYLEX', KEYS[3], ARGV[3], ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
local records = {}
if #fires > 0 then
  records = redis.call('HMGET', KEYS[2], unpack(fires))
end
-- What stands in the place of the task is older than what was filed since.
local first = redis.call('HGET', KEYS[2], ARGV[2])
if not first then
  local value = redis.call('HGET', KEYS[1], ARGV[1])
  first = value and string.byte(value, 1) == 0 and string.sub(value, 2)
end
return {first, fires, records}
