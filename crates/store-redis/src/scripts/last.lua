-- last: returns the fire of each key that ended last.
--
-- KEYS 1 tasks  2 history  3 keyed
-- ARGV 1 the largest number of members to look at for each key
--      then for each key the last and the first of its members, as ZREVRANGEBYLEX expects them
-- Returns for each key {} if it has no fire; {member, record, 1 if it replaced the task, else 0};
-- or {member} if all members down to this one are of fires that ended again since, or are gone

-- Returns the record of a fire, or false, and 1 if it replaced the task, else 0.
local function read_record(fire)
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

-- Whether a record is of a later end than a member: both have a time of 8 bytes, of which 48 bits
-- are used. A record without such a time is damaged, and the caller names it.
local function ended_again(value, ended_at)
  local time = string.sub(value, 1, 8)
  return string.match(time, '^%z%z......$') and time ~= ended_at
end

local function last_of(last, first)
  local looked, step, member = 0, 1, nil
  repeat
    local members = redis.call('ZREVRANGEBYLEX', KEYS[3], last, first, 'LIMIT', 0, step)
    for i = 1, #members do
      -- A member ends with the time of the end (8 bytes), the fire (24) and the end (1).
      member = members[i]
      local value, of_task = read_record(string.sub(member, -25, -2))
      if value and not ended_again(value, string.sub(member, -33, -26)) then
        return {member, value, of_task}
      end
    end
    if #members < step then
      return {}
    end
    last = '(' .. member
    looked = looked + step
    step = 32
  until looked >= tonumber(ARGV[1])
  return {member}
end

local answer = {}
for i = 2, #ARGV, 2 do
  answer[#answer + 1] = last_of(ARGV[i], ARGV[i + 1])
end
return answer
