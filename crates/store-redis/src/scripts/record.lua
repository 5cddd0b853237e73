-- record: the first part of scripts that read records of fires.
--
-- KEYS 1 tasks  2 history

local has_history = redis.call('EXISTS', KEYS[2]) == 1

-- Returns the records of fires, false for a fire without one, and for each 1 if the record replaced
-- the task, else 0. The fires are no more than fit on the Lua stack.
local function read_records(fires)
  -- A record under `history` is newer than one that replaced the task.
  local records = has_history and redis.call('HMGET', KEYS[2], unpack(fires)) or {}
  local of_task, ids, places = {}, {}, {}
  for i = 1, #fires do
    records[i] = records[i] or false
    of_task[i] = 0
    -- Only the fire that the id leads to replaces its task: its nominal time is in the first 6 bytes
    -- of the id.
    local id = string.sub(fires[i], 1, 16)
    if not records[i] and string.sub(fires[i], 17) == '\0\0' .. string.sub(id, 1, 6) then
      ids[#ids + 1] = id
      places[#places + 1] = i
    end
  end
  local values = #ids > 0 and redis.call('HMGET', KEYS[1], unpack(ids)) or {}
  for i = 1, #ids do
    -- The value of a task that has ended starts with a 0 byte.
    if values[i] and string.byte(values[i], 1) == 0 then
      records[places[i]] = string.sub(values[i], 2)
      of_task[places[i]] = 1
    end
  end
  return records, of_task
end
