-- letter_groups: counts dead letters by group. The start of every script that adds or removes
-- letters.
--
-- `groups` is a hash. Its fields, behind the namespace and a zero:
--   #                the names of all groups of the namespace, 16 characters each
--   a name, other    count, first and last time of death, each followed by a space; the fire of a
--                    letter (24 bytes, zeros if unknown); reason and target
-- The name of a group is made from its reason and target. `grouped` is a hash from fire to the name
-- of the group that counts its letter: a letter leaves the group that it joined.

local GROUPS_MAX = 64
local NAME = 16
local NO_FIRE = string.rep('\0', 24)
-- Arguments of one command: about 8,000 fit on the Lua stack.
local GROUPS_STEP = 4000

local LetterGroups = {}
LetterGroups.__index = LetterGroups

local function letter_groups(groups, grouped)
  return setmetatable({groups = groups, grouped = grouped, cached = {}, changed = {}, names = {},
    joined = {}, left = {}}, LetterGroups)
end

-- Returns a field of `groups`, as it is after the changes so far.
function LetterGroups:read(field)
  local value = self.cached[field]
  if value == nil then
    value = redis.call('HGET', self.groups, field)
    self.cached[field] = value
  end
  return value
end

function LetterGroups:write(field, value)
  self.cached[field] = value
  self.changed[field] = true
end

-- Removes letters from their groups: a list of namespaces and a list of fires.
function LetterGroups:remove(namespaces, fires)
  if #fires == 0 or redis.call('EXISTS', self.grouped) == 0 then
    return
  end
  for first = 1, #fires, GROUPS_STEP do
    local last = math.min(first + GROUPS_STEP - 1, #fires)
    local names = redis.call('HMGET', self.grouped, unpack(fires, first, last))
    for i = first, last do
      local name = names[i - first + 1]
      if name then
        self.left[#self.left + 1] = fires[i]
        self:forget(namespaces[i], name, fires[i])
      end
    end
  end
end

function LetterGroups:forget(namespace, name, fire)
  local field = namespace .. '\0' .. name
  local value = self:read(field)
  local count, times, at = string.match(value or '', '^(%d+) (%d+ %d+ )()')
  if not count then
    return
  end
  if tonumber(count) <= 1 then
    self:write(field, false)
    if name ~= 'other' then
      local list = namespace .. '\0#'
      local names = self:read(list) or ''
      for i = 1, #names, NAME do
        if string.sub(names, i, i + NAME - 1) == name then
          names = string.sub(names, 1, i - 1) .. string.sub(names, i + NAME)
          break
        end
      end
      self:write(list, names ~= '' and names)
    end
    return
  end
  local example = string.sub(value, at, at + 23)
  if example == fire then
    example = NO_FIRE
  end
  self:write(field, string.format('%d ', count - 1) .. times .. example
    .. string.sub(value, at + 24))
end

-- Adds a letter that no group counts.
function LetterGroups:add(namespace, fire, group, died_at)
  local name = self.names[group]
  if not name then
    name = string.sub(redis.sha1hex(group), 1, NAME)
    self.names[group] = name
  end
  local field = namespace .. '\0' .. name
  local value = self:read(field)
  if not value then
    local list = namespace .. '\0#'
    local names = self:read(list) or ''
    -- While letters count as others, no group is made: one of them may belong to it.
    if self:read(namespace .. '\0other') or #names >= GROUPS_MAX * NAME then
      name = 'other'
      field = namespace .. '\0other'
      value = self:read(field)
      group = ''
    else
      self:write(list, names .. name)
    end
  end
  local count, first, last = string.match(value or '', '^(%d+) (%d+) (%d+) ')
  if count then
    first = math.min(tonumber(first), died_at)
    last = math.max(tonumber(last), died_at)
  else
    first, last = died_at, died_at
  end
  self:write(field, string.format('%d %d %d ', (count or 0) + 1, first, last) .. fire .. group)
  self.joined[#self.joined + 1] = fire
  self.joined[#self.joined + 1] = name
end

-- Writes what changed.
function LetterGroups:finish()
  for first = 1, #self.left, GROUPS_STEP do
    local last = math.min(first + GROUPS_STEP - 1, #self.left)
    redis.call('HDEL', self.grouped, unpack(self.left, first, last))
  end
  for first = 1, #self.joined, GROUPS_STEP do
    local last = math.min(first + GROUPS_STEP - 1, #self.joined)
    redis.call('HSET', self.grouped, unpack(self.joined, first, last))
  end
  for field in pairs(self.changed) do
    if self.cached[field] then
      redis.call('HSET', self.groups, field, self.cached[field])
    else
      redis.call('HDEL', self.groups, field)
    end
  end
end

