-- dead: returns dead letters of a namespace, ordered by fire.
--
-- KEYS 1 dead  2 letters
-- ARGV 1 first and  2 last member, as ZRANGEBYLEX expects them
--      3 the largest number of letters  4 the size in bytes at which to stop
-- Returns {1 if there are more, else 0; members; letters}

local limit = tonumber(ARGV[3])
local members = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
local more = 0
if #members > limit then
  more = 1
  members[#members] = nil
end
local given, letters = {}, {}
local bytes = 0
for i = 1, #members do
  if i > 1 and bytes >= tonumber(ARGV[4]) then
    more = 1
    break
  end
  -- The fire is the last 24 bytes of the member.
  given[i] = members[i]
  letters[i] = redis.call('HGET', KEYS[2], string.sub(members[i], -24))
  bytes = bytes + #(letters[i] or '')
end
return {more, given, letters}
