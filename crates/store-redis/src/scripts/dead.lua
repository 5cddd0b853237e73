-- dead: the dead letters of a namespace in their order.
--
-- KEYS 1 dead  2 letters
-- ARGV 1 where to begin, as ZRANGEBYLEX takes it  2 where to end  3 how many at most  4 bytes at which to stop
-- Returns {1 if there are more, else 0; fires; letters}

local limit = tonumber(ARGV[3])
local places = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
local more = 0
if #places > limit then
  more = 1
  places[#places] = nil
end
local fires, letters = {}, {}
local bytes = 0
for i = 1, #places do
  if i > 1 and bytes >= tonumber(ARGV[4]) then
    more = 1
    break
  end
  -- The fire is the last 24 bytes of the place.
  fires[i] = string.sub(places[i], -24)
  letters[i] = redis.call('HGET', KEYS[2], fires[i])
  bytes = bytes + #(letters[i] or '')
end
return {more, fires, letters}
