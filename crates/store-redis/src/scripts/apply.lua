-- apply: makes all changes of a batch, if its sender owns the partition and has not sent it before.
--
-- KEYS 1 own  2 due  3 paused  4 tasks  5 late  6 names  7 letters  8 dead  9 dead-ages
--      10 history  11 fires  12 ages  13 counts
-- ARGV 1 epoch  2 token, or '' if the sender does not know it  3 number of the batch  4 the number before it
--      5 '1' if the batch brings new tasks, which need room; else '0'
--      then sections, each a count n and n arguments:
--        back          ids of tasks that come back, whose record makes room for them
--        back fires    for each of these: the fire that the id leads to
--        gone          ids of tasks that are gone
--        ended         id and record of tasks that are gone and leave the record of their only fire in their place, in turns
--        due           fire_at, id and value of tasks that are scheduled from now on, in turns
--        paused        fire_at, id and value of tasks that are paused from now on, in turns
--        was paused    ids of scheduled ones that may have been paused or postponed
--        was due       ids of paused ones that may have been scheduled or postponed
--        postponed     fire_at, id, and time and version of tasks that are due later, in turns, if they are scheduled
--        named         name and value, in turns
--        unnamed       names that lead nowhere from now on
--        unnamed if    names that lead nowhere from now on if they lead to …
--        … these       for each of these: the id
--        letters       fire and letter, in turns
--        dead          0, namespace and fire, in turns
--        dead ages     died_at, namespace and fire, in turns
--        redriven      fires whose letters are gone
--        redriven from for each of these: namespace and fire
--        history       fire and record, in turns, of other fires and of those whose task goes on
--        fires         0 and fire, in turns, for those that the task's id does not lead to
--        ages          ended_at and piece, in turns
--        counts        field and by how much it moves, in turns
-- Returns {0} made · {1} was made before · {2, epoch} another owns the partition · {3, number} the last batch is that one
--
-- Values are taken as they come: all that is decided here is decided by numbers, ids and places. A value of a task begins
-- with 0 if it is the record of the task's only fire and the task has ended, so that ending a task writes where it stood:
-- that costs half of taking it out here and filing the record there.

-- Arguments of one command: Lua takes no more than about 8,000 on its stack. Pairs and triples stay together.
local STEP = 4200

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token', 'batch')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {2, own[1] or '0'}
end
if own[3] == ARGV[3] and ARGV[3] ~= '0' then
  -- Written again, so that waiting for replicas waits for this batch also over another connection. Removing
  -- comes first: a server without memory lets a script go on that began by removing.
  redis.call('HDEL', KEYS[1], '')
  redis.call('HSET', KEYS[1], 'batch', ARGV[3])
  return {1}
end
if own[3] ~= ARGV[4] then
  return {3, own[3] or '0'}
end

-- The first write decides whether there is memory for all: new tasks are refused here, whole; the rest goes on.
if ARGV[5] == '0' then
  redis.call('HDEL', KEYS[1], '')
end
redis.call('HSET', KEYS[1], 'batch', ARGV[3])

local at = 6
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

-- Removes from what is mostly not there at all.
local function without(command, key, first, last)
  if last >= first and redis.call('EXISTS', key) == 1 then
    run(command, key, first, last)
  end
end

-- Tasks that come back: the record in their place moves aside, before the place is taken.
local function make_room(first, last, fires)
  for i = first, last do
    local value = redis.call('HGET', KEYS[4], ARGV[i])
    if value and string.byte(value, 1) == 0 then
      redis.call('HSET', KEYS[10], ARGV[fires + i - first], string.sub(value, 2))
    end
  end
end

-- Files tasks: an id is sent once for both commands, because an argument costs more than a place in a table.
local function file(key, first, last)
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

-- Takes tasks out of the order, and leaves their records where they stood.
local function leave_records(first, last)
  local aside = redis.call('EXISTS', KEYS[10]) == 1
  for i = first, last, STEP do
    local ids, fires, n = {}, {}, 0
    for j = i, math.min(i + STEP - 1, last), 2 do
      n = n + 1
      ids[n] = ARGV[j]
      if aside then
        -- The fire that an id leads to: the id, and its first 6 bytes again as a time of 8.
        fires[n] = ARGV[j] .. '\0\0' .. string.sub(ARGV[j], 1, 6)
      end
    end
    redis.call('ZREM', KEYS[2], unpack(ids))
    for key, command in pairs({[KEYS[3]] = 'ZREM', [KEYS[5]] = 'HDEL'}) do
      if redis.call('EXISTS', key) == 1 then
        redis.call(command, key, unpack(ids))
      end
    end
    if aside then
      redis.call('HDEL', KEYS[10], unpack(fires))
    end
  end
  run('HSET', KEYS[4], first, last)
end

-- Postpones tasks that are there.
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
make_room(first, last, (section()))
first, last = section()
run('ZREM', KEYS[2], first, last)
without('ZREM', KEYS[3], first, last)
run('HDEL', KEYS[4], first, last)
without('HDEL', KEYS[5], first, last)
leave_records(section())
file(KEYS[2], section())
file(KEYS[3], section())
first, last = section()
without('ZREM', KEYS[3], first, last)
without('HDEL', KEYS[5], first, last)
first, last = section()
without('ZREM', KEYS[2], first, last)
without('HDEL', KEYS[5], first, last)
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
first, last = section()
run('HSET', KEYS[7], first, last)
first, last = section()
run('ZADD', KEYS[8], first, last)
first, last = section()
run('ZADD', KEYS[9], first, last)
first, last = section()
run('HDEL', KEYS[7], first, last)
first, last = section()
run('ZREM', KEYS[8], first, last)
run('ZREM', KEYS[9], first, last)

-- History and counts.
first, last = section()
run('HSET', KEYS[10], first, last)
first, last = section()
run('ZADD', KEYS[11], first, last)
first, last = section()
run('ZADD', KEYS[12], first, last)
first, last = section()
for i = first, last, 2 do
  redis.call('HINCRBY', KEYS[13], ARGV[i], ARGV[i + 1])
end
return {0}
