-- hours: returns hours of due counts.
--
-- KEYS 1 due-hours
-- ARGV pairs of the first and the last member that an hour can be, as ZRANGEBYLEX expects them
-- Returns for each pair the member, or nil

local found = {}
for i = 1, #ARGV, 2 do
  found[#found + 1] = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[i], ARGV[i + 1], 'LIMIT', 0, 1)[1]
    or false
end
return found
