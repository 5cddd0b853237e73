
-- records: returns records of fires.
--
-- ARGV 1 the size in bytes at which to stop, then fires
-- Returns {records, or nil; for each 1 if it replaced the task, else 0}, in the order of the fires,
-- of at least the first one

-- The number of records that are read at once: of the largest, some megabytes.
local STEP = 32

local records, of_task = {}, {}
local bytes = 0
for first = 2, #ARGV, STEP do
  if bytes >= tonumber(ARGV[1]) then
    break
  end
  local fires = {unpack(ARGV, first, math.min(first + STEP - 1, #ARGV))}
  local values, marks = read_records(fires)
  for i = 1, #fires do
    records[#records + 1] = values[i]
    of_task[#of_task + 1] = marks[i]
    bytes = bytes + #(values[i] or '')
  end
end
return {records, of_task}
