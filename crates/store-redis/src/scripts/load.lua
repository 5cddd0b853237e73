-- load: returns living tasks after a position, in order, of one or of two sorted sets.
--
-- KEYS 1 tasks  2 late  3 due  4 paused, if its tasks are wanted too
-- ARGV 1 fire_at of the position, or '-inf' for the start  2 id of the position
--      3 the fire_at before which tasks are returned, or '+inf'
--      4 the largest number of tasks of each set  5 the size in bytes at which to stop
--      6 '1' to return the times of all entries, '0' for that of the last one only
-- Returns for each set {1 if there are more, else 0; ids; times; values; postponements}; values and
-- postponements are in the order of the ids; the list of postponements is empty if there are none

-- The number of tasks whose values are read at once: of the largest tasks, some megabytes.
local STEP = 32

-- Compares bytes. `<` would compare by the locale of the server.
local function above(a, b)
  for i = 1, 16 do
    local x, y = string.byte(a, i) or 0, string.byte(b, i) or 0
    if x ~= y then
      return x > y
    end
  end
  return false
end

-- Returns the rank of the first task after the position: counts the tasks that are due earlier, and
-- searches among those that are due at the same time.
local function rank_after(key)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. ARGV[1])
  local high = redis.call('ZCOUNT', key, '-inf', ARGV[1])
  while low < high do
    local middle = math.floor((low + high) / 2)
    if above(redis.call('ZRANGE', key, middle, middle)[1], ARGV[2]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local until_score = ARGV[3]
if until_score ~= '+inf' then
  until_score = '(' .. until_score
end
local answer = {}
local bytes = 0
local any_late = redis.call('EXISTS', KEYS[2]) == 1
for set = 3, #KEYS do
  local from = rank_after(KEYS[set])
  local stop = redis.call('ZCOUNT', KEYS[set], '-inf', until_score)
  local ids, times, values, lates = {}, {}, {}, {}
  local count = math.min(stop - from, tonumber(ARGV[4]))
  if count > 0 then
    ids = redis.call('ZRANGE', KEYS[set], from, from + count - 1)
  end
  local given = 0
  while given < #ids and (given == 0 or bytes < tonumber(ARGV[5])) do
    local last = math.min(given + STEP, #ids)
    local some = redis.call('HMGET', KEYS[1], unpack(ids, given + 1, last))
    for i = 1, last - given do
      bytes = bytes + #(some[i] or '')
      values[given + i] = some[i]
    end
    if any_late then
      local late = redis.call('HMGET', KEYS[2], unpack(ids, given + 1, last))
      for i = 1, last - given do
        lates[given + i] = late[i]
      end
    end
    given = last
  end
  for i = #ids, given + 1, -1 do
    ids[i] = nil
  end
  -- All times cost a third of the page.
  local first = given
  if ARGV[6] == '1' then
    first = 1
  end
  for i = math.max(first, 1), given do
    times[#times + 1] = redis.call('ZSCORE', KEYS[set], ids[i])
  end
  local more = 0
  if stop - from > given then
    more = 1
  end
  answer[#answer + 1] = {more, ids, times, values, lates}
end
return answer
