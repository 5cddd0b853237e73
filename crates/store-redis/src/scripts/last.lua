
-- last: returns the fire of each key that ended last.
--
-- KEYS 3 keyed
-- ARGV 1 the largest number of members to look at for each key
--      then for each key the last and the first of its members, as ZREVRANGEBYLEX expects them
-- Returns for each key {} if it has no fire; {member, record, 1 if it replaced the task, else 0};
-- or {member} if all members down to this one are of fires that ended again since, or are gone

local function last_of(last, first)
  local looked, step, member = 0, 1, nil
  repeat
    local members = redis.call('ZREVRANGEBYLEX', KEYS[3], last, first, 'LIMIT', 0, step)
    for i = 1, #members do
      member = members[i]
      -- A member ends with the time of the end (8 bytes), the fire (24) and the end (1). A record
      -- starts with the time of its end, which has 48 bits; one without is damaged.
      local values, of_task = read_records({string.sub(member, -25, -2)})
      local value = values[1]
      local ended_at = string.sub(value or '', 1, 8)
      local ended_again = string.match(ended_at, '^%z%z......$')
        and ended_at ~= string.sub(member, -33, -26)
      if value and not ended_again then
        return {member, value, of_task[1]}
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
