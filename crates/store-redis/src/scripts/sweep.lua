-- sweep: deletes history and dead letters that are past their retention, some with each call.
--
-- KEYS 1 own  2 history  3 fires  4 ages  5 letters  6 dead  7 dead-ages  8 counts  9 tasks
-- ARGV 1 epoch  2 token, or '' if the sender does not know it
--      3 the latest end of history that is past its age, or '-inf'  4 the same for dead letters
--      5 bytes of history to delete whatever their age
--      6 the largest number of pieces of history  7 the largest number of dead letters
--      8 the field of the size of history
-- Returns {0, records deleted, letters deleted, {damaged field or member of a key, key, ...}}
--         {2, epoch} another broker owns the partition

local own = redis.call('HMGET', KEYS[1], 'epoch', 'token')
if own[1] ~= ARGV[1] or (ARGV[2] ~= '' and own[2] ~= ARGV[2]) then
  return {2, own[1] or '0'}
end

local function number(text, first, last)
  local sum = 0
  for i = first, last do
    sum = sum * 256 + string.byte(text, i)
  end
  return sum
end

local damaged = {}
local function report(key, field)
  damaged[#damaged + 1] = field
  damaged[#damaged + 1] = key
end

-- Moves a count. One that is no number stays as it is.
local function move(field, by)
  if type(redis.pcall('HINCRBY', KEYS[8], field, by)) == 'table' then
    report(KEYS[8], field)
  end
end

-- Moves a member that cannot be read behind all others, where it is in the way of none.
local function put_last(key, member)
  redis.call('ZADD', key, '+inf', member)
  report(key, member)
end

local function is_past(record, skip, ended_at)
  return record and #record >= skip + 8 and number(record, skip + 1, skip + 8) <= ended_at
end

-- Deletes the records of a piece, which lists fires of one batch. A fire that ended again has a
-- newer record, which a later piece lists too; that record stays.
local function delete(piece, ended_at)
  local count = 0
  local fires, tasks = {}, {}
  for first = 19, #piece, 24 do
    local fire = string.sub(piece, first, first + 23)
    local id = string.sub(fire, 1, 16)
    local apart = is_past(redis.call('HGET', KEYS[2], fire), 0, ended_at)
    if apart then
      fires[#fires + 1] = fire
    end
    -- A record that replaced its task is of the fire that the id leads to: its nominal time is in
    -- the first 6 bytes of the id.
    local replaced = false
    if number(id, 1, 6) == number(fire, 17, 24) then
      local value = redis.call('HGET', KEYS[9], id)
      replaced = value and string.byte(value, 1) == 0 and is_past(value, 1, ended_at)
      if replaced then
        tasks[#tasks + 1] = id
      end
    end
    if apart or replaced then
      count = count + 1
    end
  end
  if #fires > 0 then
    redis.call('HDEL', KEYS[2], unpack(fires))
    redis.call('ZREM', KEYS[3], unpack(fires))
  end
  if #tasks > 0 then
    redis.call('HDEL', KEYS[9], unpack(tasks))
  end
  redis.call('ZREM', KEYS[4], piece)
  local size = number(piece, 15, 18)
  move(ARGV[8], -size)
  return count, size
end

local records, freed = 0, 0
local oldest = redis.call('ZRANGE', KEYS[4], 0, tonumber(ARGV[6]) - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local ended_at = tonumber(oldest[i + 1])
  local past = ARGV[3] ~= '-inf' and ended_at <= tonumber(ARGV[3])
  if not past and freed >= tonumber(ARGV[5]) then
    break
  end
  -- A header of 18 bytes, then fires of 24.
  if #oldest[i] < 18 or (#oldest[i] - 18) % 24 ~= 0 then
    put_last(KEYS[4], oldest[i])
  else
    local deleted, size = delete(oldest[i], ended_at)
    records = records + deleted
    freed = freed + size
  end
end

local letters = 0
if ARGV[4] ~= '-inf' then
  local limit = tonumber(ARGV[7])
  local members = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', ARGV[4], 'LIMIT', 0, limit)
  local past = {}
  for _, member in ipairs(members) do
    -- A namespace, a zero and a fire of 24 bytes.
    if #member > 25 and string.byte(member, -25) == 0 then
      past[#past + 1] = member
      redis.call('HDEL', KEYS[5], string.sub(member, -24))
      move(string.sub(member, 1, -25) .. 'l', -1)
    else
      put_last(KEYS[7], member)
    end
  end
  if #past > 0 then
    redis.call('ZREM', KEYS[6], unpack(past))
    redis.call('ZREM', KEYS[7], unpack(past))
  end
  letters = #past
end
return {0, records, letters, damaged}
