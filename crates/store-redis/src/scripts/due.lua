-- due: returns counts of due tasks: a page of hours, and with the first page what batches have
-- changed since these were written.
--
-- KEYS 1 counted  2 due-hours  3 due-log  4 due
-- ARGV 1 the first member, as ZRANGEBYLEX expects it  2 the last  3 the largest number of hours
--      4 '1' to return the log, else '0'
-- Returns {1 if all tasks are counted, else 0; how often the log was folded; log or ''; hours}

local counted = redis.call('HMGET', KEYS[1], 'epoch', 'at', 'folds')
local complete = counted[1] and not counted[2] or redis.call('EXISTS', KEYS[4]) == 0
local log = ''
if ARGV[4] == '1' then
  log = redis.call('GET', KEYS[3]) or ''
end
return {complete and 1 or 0, counted[3] or '0', log,
  redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])}
