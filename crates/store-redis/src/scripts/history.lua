-- history: returns records of the fires of a task, latest nominal time first.
--
-- KEYS 1 tasks  2 history  3 fires
-- ARGV 1 the id of the task  2 the fire that the id leads to
--      3 the newest and  4 the oldest of the other fires, as ZREVRANGEBYLEX expects them
--      5 the largest number of other fires
-- Returns {record of the fire that the id leads to, or nil; 1 if it replaced the task, else 0;
--          the other fires; their records}

local fires = redis.call('ZREVRANGEBYLEX', KEYS[3], ARGV[3], ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
local records = {}
if #fires > 0 then
  records = redis.call('HMGET', KEYS[2], unpack(fires))
end
-- A record under `history` is newer than one that replaced the task.
local first = redis.call('HGET', KEYS[2], ARGV[2])
local of_task = 0
if not first then
  local value = redis.call('HGET', KEYS[1], ARGV[1])
  first = value and string.byte(value, 1) == 0 and string.sub(value, 2)
  of_task = 1
end
return {first, of_task, fires, records}
