-- apply: makes all changes of a batch, if its sender owns the partition and the batch is the next.
--
-- KEYS 1 own  2 due  3 paused  4 tasks  5 late  6 names  7 letters  8 dead  9 dead-ages
--      10 history  11 fires  12 ages  13 counts  14 ends  15 keyed  16 namespaces
--      17 counted  18 due-hours  19 due-log  20 groups  21 grouped
--      then the series of each namespace that has changes of series
-- ARGV 1 epoch  2 token, or '' if the sender does not know it
--      3 number of the batch  4 the number before it
--      5 '1' if the batch has new tasks, which need free memory; else '0'
--      6 the last repair that the sender had begun
--      then sections, each a count n and n arguments:
--        restored         ids of ended tasks that are redriven
--        restored fires   for each of these: the fire that the id leads to
--        removed          ids of tasks that ended
--        ended            (id, record): tasks that ended with their first fire; the record
--                         replaces the task
--        due              (fire_at, id, value): tasks that are scheduled from now on
--        paused           (fire_at, id, value): tasks that are paused from now on
--        was paused       ids of scheduled tasks that may have been paused or postponed
--        was due          ids of paused tasks that may have been scheduled or postponed
--        postponed        (fire_at, id, postponement): tasks that are due later, if scheduled
--        named            (name, value)
--        freed            names that are free from now on
--        freed if         names that are free from now on if they lead to …
--        freed if ids     … for each of these: this id
--        letters          (fire, letter)
--        letter groups    for each of these: its group
--        dead             (0, namespace and fire)
--        dead ages        (died_at, namespace and fire)
--        removed letters  fires whose letters are removed
--        removed members  for each of these: namespace and fire
--        history          (fire, record): fires whose record does not replace a task
--        fires            (0, fire): those of them that the id of the task does not lead to
--        ages             (ended_at, piece)
--        ends             (0, group of ended fires)
--        keyed            (0, namespace, key, ended_at and fire)
--        counts           (field, by how much it moves)
--        due log          the differences of due counts, if there are any
--        then for each key of series:
--          due            (fire_at, id)
--          removed        ids
-- Runs behind `letter_groups.lua`.
-- Returns {0, bytes of the due log, fields ...} made, but these counts could not be moved
--         {1} was made before · {2, epoch} another broker owns the partition
--         {3, number} the last batch is this one, so ARGV 3 is not the next
--         {4} the owner has begun a later repair since it sent the batch
--
-- The script does not decode values; it decides by numbers, ids and names. The value of a task
-- starts with a 0 byte if it is the record of a task that ended with its first fire. Replacing the
-- value costs half of removing the task and storing the record under another key.

-- Arguments of one command: about 8,000 fit on the Lua stack. Pairs and triples stay together.
local STEP = 4200
-- The log is folded long before it has so many bytes, unless folding fails. Then the counts are
-- given up, and made anew when the partition is acquired next.
local LOG_BYTES_MAX = 8388608

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token', 'batch', 'repair')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {2, own[1] or '0'}
end
-- A repair that cannot be read counts as none: this batch writes it again.
local repair = tonumber(own[4] or '0') or 0
if repair > tonumber(ARGV[6]) then
  return {4}
end
if own[3] == ARGV[3] and ARGV[3] ~= '0' then
  -- The number is written again, so that a WAIT over another connection covers this batch. Removes
  -- first: without free memory, Redis accepts removals, and lets a script that has written
  -- continue.
  redis.call('HDEL', KEYS[1], '')
  redis.call('HSET', KEYS[1], 'batch', ARGV[3], 'repair', ARGV[6])
  return {1}
end
if own[3] ~= ARGV[4] then
  return {3, own[3] or '0'}
end

-- The first write decides whether the server has free memory: without it, a batch with new tasks is
-- refused here as a whole, and any other batch is made.
if ARGV[5] == '0' then
  redis.call('HDEL', KEYS[1], '')
end
if repair == tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[1], 'batch', ARGV[3])
else
  redis.call('HSET', KEYS[1], 'batch', ARGV[3], 'repair', ARGV[6])
end

local at = 7
local function section()
  local first = at + 1
  at = first + tonumber(ARGV[at])
  return first, at - 1
end

local function run(command, key, first, last)
  for i = first, last, STEP do
    redis.call(command, key, unpack(ARGV, i, math.min(i + STEP - 1, last)))
  end
end

-- Removes from a key that mostly does not exist.
local function remove_if_exists(command, key, first, last)
  if last >= first and redis.call('EXISTS', key) == 1 then
    run(command, key, first, last)
  end
end

-- Restores tasks: the record that replaced the task moves to the history.
local function move_records(first, last, fires)
  for i = first, last do
    local value = redis.call('HGET', KEYS[4], ARGV[i])
    if value and string.byte(value, 1) == 0 then
      redis.call('HSET', KEYS[10], ARGV[fires + i - first], string.sub(value, 2))
    end
  end
end

-- Stores tasks. An id is sent once for both commands: arguments cost more than entries of a table.
local function store(key, first, last)
  for i = first, last, STEP do
    local times, values, n = {}, {}, 0
    for j = i, math.min(i + STEP - 1, last), 3 do
      times[n + 1], times[n + 2] = ARGV[j], ARGV[j + 1]
      values[n + 1], values[n + 2] = ARGV[j + 1], ARGV[j + 2]
      n = n + 2
    end
    redis.call('ZADD', key, unpack(times))
    redis.call('HSET', KEYS[4], unpack(values))
  end
end

-- Replaces tasks with their records.
local function replace_with_records(first, last)
  local has_history = redis.call('EXISTS', KEYS[10]) == 1
  for i = first, last, STEP do
    local ids, fires, n = {}, {}, 0
    for j = i, math.min(i + STEP - 1, last), 2 do
      n = n + 1
      ids[n] = ARGV[j]
      if has_history then
        -- The fire that an id leads to: the id, and its first 6 bytes again as a time of 8 bytes.
        fires[n] = ARGV[j] .. '\0\0' .. string.sub(ARGV[j], 1, 6)
      end
    end
    redis.call('ZREM', KEYS[2], unpack(ids))
    for key, command in pairs({[KEYS[3]] = 'ZREM', [KEYS[5]] = 'HDEL'}) do
      if redis.call('EXISTS', key) == 1 then
        redis.call(command, key, unpack(ids))
      end
    end
    if has_history then
      redis.call('HDEL', KEYS[10], unpack(fires))
    end
  end
  run('HSET', KEYS[4], first, last)
end

-- Postpones tasks that are scheduled.
local function postpone(first, last)
  for i = first, last, STEP do
    local upto = math.min(i + STEP - 1, last)
    local ids, n = {}, 0
    for j = i, upto, 3 do
      n = n + 1
      ids[n] = ARGV[j + 1]
    end
    local scores = redis.call('ZMSCORE', KEYS[2], unpack(ids))
    local times, lates, m = {}, {}, 0
    for k = 1, n do
      if scores[k] then
        local j = i + 3 * (k - 1)
        times[m + 1], times[m + 2] = ARGV[j], ids[k]
        lates[m + 1], lates[m + 2] = ids[k], ARGV[j + 2]
        m = m + 2
      end
    end
    if m > 0 then
      redis.call('ZADD', KEYS[2], unpack(times))
      redis.call('HSET', KEYS[5], unpack(lates))
    end
  end
end

-- Tasks.
local first, last = section()
move_records(first, last, (section()))
first, last = section()
run('ZREM', KEYS[2], first, last)
remove_if_exists('ZREM', KEYS[3], first, last)
run('HDEL', KEYS[4], first, last)
remove_if_exists('HDEL', KEYS[5], first, last)
replace_with_records(section())
store(KEYS[2], section())
store(KEYS[3], section())
first, last = section()
remove_if_exists('ZREM', KEYS[3], first, last)
remove_if_exists('HDEL', KEYS[5], first, last)
first, last = section()
remove_if_exists('ZREM', KEYS[2], first, last)
remove_if_exists('HDEL', KEYS[5], first, last)
postpone(section())

-- Names.
first, last = section()
run('HSET', KEYS[6], first, last)
first, last = section()
run('HDEL', KEYS[6], first, last)
first, last = section()
local ids = section()
for i = first, last, STEP do
  local upto = math.min(i + STEP - 1, last)
  local heads = redis.call('HMGET', KEYS[6], unpack(ARGV, i, upto))
  local free = {}
  for j = i, upto do
    local head = heads[j - i + 1]
    if head and string.sub(head, 1, 16) == ARGV[ids + j - first] then
      free[#free + 1] = ARGV[j]
    end
  end
  if #free > 0 then
    redis.call('HDEL', KEYS[6], unpack(free))
  end
end

-- Dead letters.
local groups = letter_groups(KEYS[20], KEYS[21])
local new_first, new_last = section()
run('HSET', KEYS[7], new_first, new_last)
local group_at = section()
local member_at, member_last = section()
run('ZADD', KEYS[8], member_at, member_last)
local age_at, age_last = section()
run('ZADD', KEYS[9], age_at, age_last)
local gone_first, gone_last = section()
run('HDEL', KEYS[7], gone_first, gone_last)
first, last = section()
run('ZREM', KEYS[8], first, last)
run('ZREM', KEYS[9], first, last)
if new_last > new_first or gone_last >= gone_first then
  -- A member is a namespace, a zero and a fire of 24 bytes.
  local namespaces, fires = {}, {}
  for i = 0, gone_last - gone_first do
    namespaces[#namespaces + 1] = string.sub(ARGV[first + i], 1, -26)
    fires[#fires + 1] = ARGV[gone_first + i]
  end
  local added = (new_last - new_first + 1) / 2
  for i = 0, added - 1 do
    namespaces[#namespaces + 1] = string.sub(ARGV[member_at + 2 * i + 1], 1, -26)
    fires[#fires + 1] = ARGV[new_first + 2 * i]
  end
  groups:remove(namespaces, fires)
  for i = 0, added - 1 do
    groups:add(namespaces[#namespaces - added + 1 + i], ARGV[new_first + 2 * i],
      ARGV[group_at + i], tonumber(ARGV[age_at + 2 * i]))
  end
  groups:finish()
end

-- History and counts.
first, last = section()
run('HSET', KEYS[10], first, last)
first, last = section()
run('ZADD', KEYS[11], first, last)
first, last = section()
run('ZADD', KEYS[12], first, last)
first, last = section()
run('ZADD', KEYS[14], first, last)
first, last = section()
run('ZADD', KEYS[15], first, last)
first, last = section()
local made = {0, 0}
for i = first, last, 2 do
  -- A count that is no number, or too large, stays as it is: the batch must not end half-way.
  local moved = redis.pcall('HINCRBY', KEYS[13], ARGV[i], ARGV[i + 1])
  if type(moved) == 'table' then
    made[#made + 1] = ARGV[i]
  elseif moved == tonumber(ARGV[i + 1]) then
    -- The count was zero, so the namespace may be new. The size of history has no namespace.
    local namespace = string.match(ARGV[i], '^[^%z]+')
    if namespace then
      redis.pcall('ZADD', KEYS[16], 0, namespace)
    end
  end
end
first, last = section()
if last >= first then
  local bytes = redis.pcall('APPEND', KEYS[19], ARGV[first])
  if type(bytes) == 'number' and bytes < LOG_BYTES_MAX then
    made[2] = bytes
  else
    redis.call('DEL', KEYS[17], KEYS[19])
  end
end
for key = 22, #KEYS do
  first, last = section()
  run('ZADD', KEYS[key], first, last)
  first, last = section()
  run('ZREM', KEYS[key], first, last)
end
return made
