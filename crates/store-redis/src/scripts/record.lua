-- record: the first part of scripts that read records of fires.
--
-- KEYS 1 tasks  2 history

-- Returns the record of a fire, or false, and 1 if it replaced the task, else 0.
local function record(fire)
  -- A record under `history` is newer than one that replaced the task.
  local value = redis.call('HGET', KEYS[2], fire)
  if value then
    return value, 0
  end
  -- Only the fire that the id leads to replaces its task: its nominal time is in the first 6 bytes
  -- of the id. The value of a task that has ended starts with a 0 byte.
  local id = string.sub(fire, 1, 16)
  if string.sub(fire, 17) == '\0\0' .. string.sub(id, 1, 6) then
    value = redis.call('HGET', KEYS[1], id)
    if value and string.byte(value, 1) == 0 then
      return string.sub(value, 2), 1
    end
  end
  return false, 0
end
