-- sweep: deletes history and dead letters that are past their retention, some at a time.
--
-- KEYS 1 own  2 history  3 fires  4 ages  5 letters  6 dead  7 dead-ages  8 counts  9 tasks
-- ARGV 1 epoch  2 token, or '' if the sender does not know it
--      3 time up to which history is past its age, or '-inf'  4 the same of dead letters
--      5 bytes of history to delete besides, whatever their age  6 pieces of history at most  7 letters at most
--      8 the field of history's size
-- Returns {0, records deleted, letters deleted} · {2, epoch} another owns the partition

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

local function is_past(record, skip, ended_at)
  return record and #record >= skip + 8 and number(record, skip + 1, skip + 8) <= ended_at
end

-- A piece names the fires of one batch. A fire that ended again later has its record in a later piece also, and stays.
local function delete(piece, ended_at)
  local count = 0
  local gone, places = {}, {}
  for first = 19, #piece, 24 do
    local fire = string.sub(piece, first, first + 23)
    local id = string.sub(fire, 1, 16)
    local aside = is_past(redis.call('HGET', KEYS[2], fire), 0, ended_at)
    if aside then
      gone[#gone + 1] = fire
    end
    -- The record in the place of a task is of the fire that its id leads to, due when the first 6 bytes say.
    local in_place = false
    if number(id, 1, 6) == number(fire, 17, 24) then
      local value = redis.call('HGET', KEYS[9], id)
      in_place = value and string.byte(value, 1) == 0 and is_past(value, 1, ended_at)
      if in_place then
        places[#places + 1] = id
      end
    end
    if aside or in_place then
      count = count + 1
    end
  end
  if #gone > 0 then
    redis.call('HDEL', KEYS[2], unpack(gone))
    redis.call('ZREM', KEYS[3], unpack(gone))
  end
  if #places > 0 then
    redis.call('HDEL', KEYS[9], unpack(places))
  end
  redis.call('ZREM', KEYS[4], piece)
  local size = number(piece, 15, 18)
  redis.call('HINCRBY', KEYS[8], ARGV[8], -size)
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
  local gone, size = delete(oldest[i], ended_at)
  records = records + gone
  freed = freed + size
end

local letters = 0
if ARGV[4] ~= '-inf' then
  local places = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', ARGV[4], 'LIMIT', 0, tonumber(ARGV[7]))
  for _, place in ipairs(places) do
    redis.call('HDEL', KEYS[5], string.sub(place, -24))
    redis.call('HINCRBY', KEYS[8], string.sub(place, 1, -25) .. 'l', -1)
  end
  if #places > 0 then
    redis.call('ZREM', KEYS[6], unpack(places))
    redis.call('ZREM', KEYS[7], unpack(places))
  end
  letters = #places
end
return {0, records, letters}
