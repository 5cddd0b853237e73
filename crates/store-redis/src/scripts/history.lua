-- history: how fires of a task ended, newest by nominal time first.
--
-- KEYS 1 history  2 fires
-- ARGV 1 the fire that the task's id leads to  2 the newest fire to begin with, as ZREVRANGEBYLEX takes it  3 the oldest
--      4 how many of the others at most
-- Returns {record of the first or nothing; fires of the others; their records}

local fires = redis.call('ZREVRANGEBYLEX', KEYS[2], ARGV[2], ARGV[3], 'LIMIT', 0, tonumber(ARGV[4]))
local records = {}
if #fires > 0 then
  records = redis.call('HMGET', KEYS[1], unpack(fires))
end
return {redis.call('HGET', KEYS[1], ARGV[1]), fires, records}
