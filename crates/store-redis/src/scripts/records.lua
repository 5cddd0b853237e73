
-- records: returns records of fires.
--
-- ARGV 1 the size in bytes at which to stop, then fires
-- Returns {records, or nil; for each 1 if it replaced the task, else 0}, in the order of the fires,
-- of at least the first one

local records, of_task = {}, {}
local bytes = 0
for i = 2, #ARGV do
  if bytes >= tonumber(ARGV[1]) then
    break
  end
  records[i - 1], of_task[i - 1] = record(ARGV[i])
  bytes = bytes + #(records[i - 1] or '')
end
return {records, of_task}
