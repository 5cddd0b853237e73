-- history: returns records of the fires of a task, latest nominal time first.
--
-- KEYS 1 tasks  2 history  3 fires
-- ARGV 1 the id of the task  2 the fire that the id leads to
--      3 the newest and  4 the oldest of the other fires, as ZREVRANGEBYLEX expects them
--      5 the largest number of other fires  6 the bytes at which their records end
-- Returns {record of the fire that the id leads to, or nil; 1 if it replaced the task, else 0;
--          the other fires; their records; 1 if there may be more fires, else 0}

local fires = redis.call('ZREVRANGEBYLEX', KEYS[3], ARGV[3], ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
local records, bytes, read = {}, 0, 0
-- In pieces, so that little is read beyond the last record.
while read < #fires and bytes < tonumber(ARGV[6]) do
  local last = math.min(read + 8, #fires)
  local piece = redis.call('HMGET', KEYS[2], unpack(fires, read + 1, last))
  for _, record in ipairs(piece) do
    records[#records + 1] = record
    bytes = bytes + (record and #record or 0)
  end
  read = last
end
local more = (read < #fires or #fires == tonumber(ARGV[5])) and 1 or 0
for index = #fires, read + 1, -1 do
  fires[index] = nil
end
-- A record under `history` is newer than one that replaced the task.
local first = redis.call('HGET', KEYS[2], ARGV[2])
local of_task = 0
if not first then
  local value = redis.call('HGET', KEYS[1], ARGV[1])
  first = value and string.byte(value, 1) == 0 and string.sub(value, 2)
  of_task = 1
end
return {first, of_task, fires, records, more}
