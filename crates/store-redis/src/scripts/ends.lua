-- ends: returns groups of ended fires, newest first, of one or several ranges of groups.
--
-- KEYS 1 ends
-- ARGV 1 the length of the first bytes that the groups of a range share: namespace, 0, end
--      2 a time: groups whose earliest fire ended later are passed over
--      3 the number of fires to find in each range  4 the size in bytes at which to stop
--      5 the largest number of groups to look at in each range
--      then for each range its last and its first member, as ZREVRANGEBYLEX expects them
-- Returns for each range {first bytes of the last group that was looked at, or nil if there are no
-- more; groups}. Behind the fires to find, one more group is returned: fires of a group that ended
-- before the latest fire of the next one are not in order yet.

-- The largest number of groups that are read at once: of the largest, some megabytes.
local STEP_MAX = 32

local function number(text, first, last)
  local sum = 0
  for i = first, last do
    sum = sum * 256 + (string.byte(text, i) or 0)
  end
  return sum
end

-- Times have 48 bits. A group with a larger one is damaged; the caller names it.
local TIME_MAX = 281474976710655

-- Behind the shared bytes: the latest end (8), epoch (4), batch (8), number (4), earliest end (8),
-- number of fires (2).
local front = tonumber(ARGV[1])
local before = tonumber(ARGV[2])
local wanted, bytes_max, looks_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local bytes = 0

local function read(last, first)
  local groups, fires, looked, step = {}, 0, 0, 2
  while true do
    local some = redis.call('ZREVRANGEBYLEX', KEYS[1], last, first, 'LIMIT', 0, step)
    for i = 1, #some do
      local group = some[i]
      local name = string.sub(group, 1, front + 24)
      local had = fires
      local earliest = number(group, front + 25, front + 32)
      if earliest <= before or earliest > TIME_MAX then
        groups[#groups + 1] = group
        fires = fires + number(group, front + 33, front + 34)
        bytes = bytes + #group
      end
      looked = looked + 1
      if had >= wanted or bytes >= bytes_max or looked >= looks_max then
        return {name, groups}
      end
      last = '(' .. name
    end
    if #some < step then
      return {false, groups}
    end
    step = math.min(2 * step, STEP_MAX)
  end
end

local answer = {}
for i = 6, #ARGV, 2 do
  answer[#answer + 1] = read(ARGV[i], ARGV[i + 1])
end
return answer
