-- sweep: deletes history and dead letters that are past their retention, some with each call.
--
-- KEYS 1 own  2 history  3 fires  4 ages  5 letters  6 dead  7 dead-ages  8 counts  9 tasks
--      10 ends  11 keyed  12 groups  13 grouped
-- ARGV 1 epoch  2 token, or '' if the sender does not know it
--      3 the latest end of history that is past its age, or '-inf'  4 the same for dead letters
--      5 bytes of history to delete whatever their age
--      6 the largest number of pieces of history  7 the largest number of dead letters
--      8 the field of the size of history
-- Runs behind `letter_groups.lua`.
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

-- Returns the fires that a group lists, or nil if it cannot be read. `first` is where the fires
-- begin. Each has a length of its key and a flag (2 bytes), an id (16), an end (6), a nominal time
-- (8) if the flag is set, and the key.
local function fires_of_group(group, namespace, ending, first)
  local fires = {}
  local at = first
  while at <= #group do
    if at + 23 > #group then
      return nil
    end
    local id = string.sub(group, at + 2, at + 17)
    local ended_at = '\0\0' .. string.sub(group, at + 18, at + 23)
    local length = number(group, at, at + 1)
    local nominal = '\0\0' .. string.sub(id, 1, 6)
    at = at + 24
    if length >= 32768 then
      length = length - 32768
      nominal = string.sub(group, at, at + 7)
      at = at + 8
    end
    local fire = {fire = id .. nominal, ended_at = ended_at}
    if length > 0 then
      local key = string.sub(group, at, at + length - 1)
      fire.keyed = namespace .. '\0' .. key .. '\0' .. ended_at .. fire.fire .. ending
      at = at + length
    end
    fires[#fires + 1] = fire
  end
  if at ~= #group + 1 then
    return nil
  end
  return fires
end

-- Returns the fires of the groups that a piece names, and the groups; nil if the piece cannot be
-- read. A piece has a format (1 byte), epoch (4), batch (8), number (2) and size (4), then for each
-- group the length of its namespace (1), the namespace, the end (1), the latest end (8) and the
-- number of the group (4).
local function read_piece(piece)
  if #piece < 19 then
    return nil
  end
  local fires, groups = {}, {}
  local origin = string.sub(piece, 2, 13)
  local at = 20
  while at <= #piece do
    local length = string.byte(piece, at)
    if at + length + 13 > #piece then
      return nil
    end
    local namespace = string.sub(piece, at + 1, at + length)
    at = at + 1 + length
    local ending = string.sub(piece, at, at)
    local name = namespace .. '\0' .. string.sub(piece, at, at + 8) .. origin
      .. string.sub(piece, at + 9, at + 12)
    at = at + 13
    local found = redis.call('ZRANGEBYLEX', KEYS[10], '[' .. name, '[' .. name .. '\255',
      'LIMIT', 0, 1)
    -- Behind the name: the earliest end (8) and the number of fires (2).
    local listed = found[1] and fires_of_group(found[1], namespace, ending, #name + 11)
    if listed then
      groups[#groups + 1] = found[1]
      for i = 1, #listed do
        fires[#fires + 1] = listed[i]
      end
    else
      report(KEYS[10], name)
    end
  end
  return fires, groups
end

-- Returns the fires of a piece of the first format: 24 bytes each behind a header of 18 bytes.
local function read_first_format(piece)
  if #piece < 18 or (#piece - 18) % 24 ~= 0 then
    return nil
  end
  local fires = {}
  for first = 19, #piece, 24 do
    fires[#fires + 1] = {fire = string.sub(piece, first, first + 23)}
  end
  return fires, {}
end

-- Whether a record is the one that a piece lists. A fire that ended again has a newer record, which
-- a later piece lists; that record stays. The first format does not have the end of a fire.
local function is_listed(record, skip, fire, ended_at)
  if not record or #record < skip + 8 then
    return false
  end
  if fire.ended_at then
    return string.sub(record, skip + 1, skip + 8) == fire.ended_at
  end
  return number(record, skip + 1, skip + 8) <= ended_at
end

-- Arguments of one command that removes: about 8,000 fit on the Lua stack.
local STEP = 4000
-- The number of records that are read at once: of the largest, some megabytes.
local RECORDS_STEP = 64

local function remove(command, key, members)
  for first = 1, #members, STEP do
    redis.call(command, key, unpack(members, first, math.min(first + STEP - 1, #members)))
  end
end

-- Returns the values of fields of a hash that may not exist.
local function read(key, exists, fields)
  return exists and #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
end

local has_history = redis.call('EXISTS', KEYS[2]) == 1

-- Adds what is to be removed for some fires. Returns how many records there are.
local function collect(listed, first, last, ended_at, past)
  local fires, ids = {}, {}
  for i = first, last do
    fires[#fires + 1] = listed[i].fire
    ids[#ids + 1] = string.sub(listed[i].fire, 1, 16)
  end
  local apart, values = read(KEYS[2], has_history, fires), read(KEYS[9], true, ids)
  local count = 0
  for i = 1, #fires do
    local fire = listed[first + i - 1]
    local is_apart = is_listed(apart[i], 0, fire, ended_at)
    -- A record that replaced its task is of the fire that the id leads to: its nominal time is in
    -- the first 6 bytes of the id. It is older than a record under `history`.
    local value = values[i]
    local replaced = value and string.byte(value, 1) == 0
      and string.sub(fires[i], 17) == '\0\0' .. string.sub(ids[i], 1, 6)
      and (is_apart or is_listed(value, 1, fire, ended_at))
    if is_apart then
      past.fires[#past.fires + 1] = fires[i]
    end
    if replaced then
      past.tasks[#past.tasks + 1] = ids[i]
    end
    if is_apart or replaced then
      count = count + 1
    end
    past.keyed[#past.keyed + 1] = fire.keyed
  end
  return count
end

-- Deletes the records of fires, and their entries in `fires` and `keyed`.
local function delete(listed, ended_at)
  local past = {fires = {}, tasks = {}, keyed = {}}
  local count = 0
  for first = 1, #listed, RECORDS_STEP do
    local last = math.min(first + RECORDS_STEP - 1, #listed)
    count = count + collect(listed, first, last, ended_at, past)
  end
  remove('HDEL', KEYS[2], past.fires)
  remove('ZREM', KEYS[3], past.fires)
  remove('HDEL', KEYS[9], past.tasks)
  remove('ZREM', KEYS[11], past.keyed)
  return count
end

local records, freed = 0, 0
local oldest = redis.call('ZRANGE', KEYS[4], 0, tonumber(ARGV[6]) - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local piece, ended_at = oldest[i], tonumber(oldest[i + 1])
  local past = ARGV[3] ~= '-inf' and ended_at <= tonumber(ARGV[3])
  if not past and freed >= tonumber(ARGV[5]) then
    break
  end
  -- Epochs are small: the first byte of the first format is never 255.
  local has_groups = string.byte(piece, 1) == 255
  local fires, groups
  if has_groups then
    fires, groups = read_piece(piece)
  else
    fires, groups = read_first_format(piece)
  end
  if fires then
    records = records + delete(fires, ended_at)
    remove('ZREM', KEYS[10], groups)
    redis.call('ZREM', KEYS[4], piece)
    local size = has_groups and number(piece, 16, 19) or number(piece, 15, 18)
    move(ARGV[8], -size)
    freed = freed + size
  else
    put_last(KEYS[4], piece)
  end
end

local letters = 0
if ARGV[4] ~= '-inf' then
  local limit = tonumber(ARGV[7])
  local members = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', ARGV[4], 'LIMIT', 0, limit)
  local past, namespaces, fires = {}, {}, {}
  for _, member in ipairs(members) do
    -- A namespace, a zero and a fire of 24 bytes.
    if #member > 25 and string.byte(member, -25) == 0 then
      past[#past + 1] = member
      namespaces[#past], fires[#past] = string.sub(member, 1, -26), string.sub(member, -24)
      redis.call('HDEL', KEYS[5], fires[#past])
      move(string.sub(member, 1, -25) .. 'l', -1)
    else
      put_last(KEYS[7], member)
    end
  end
  if #past > 0 then
    redis.call('ZREM', KEYS[6], unpack(past))
    redis.call('ZREM', KEYS[7], unpack(past))
    local groups = letter_groups(KEYS[12], KEYS[13])
    groups:remove(namespaces, fires)
    groups:finish()
  end
  letters = #past
end
return {0, records, letters, damaged}
