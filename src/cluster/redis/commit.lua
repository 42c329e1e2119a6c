-- Compares records, and writes them if all are as they should be.
--
-- KEYS[1]: the hash of the newest commit. ARGV: what begins all keys, the nonce of the commit, how many nonces are kept,
-- then of each operation: folder, name, condition, what becomes of the record (`put`, `delete` or `nothing`), data.
-- Returns { 0, revision, time }, or { 1, place, version } of the first condition that does not hold; the version is -1 if
-- there is no record.

-- A replica may not know what others have committed, and must not refuse anything.
if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY this server is a replica')
end

local format = redis.call('HGET', KEYS[1], 'format')
if format and format ~= '1' then
  return redis.error_reply('FORMAT the records were made by a later version of cronkeeper')
end

local tag, nonce, kept = ARGV[1], ARGV[2], tonumber(ARGV[3])
local of_each = 5
local count = (#ARGV - 3) / of_each
local known = {}
for place = 0, count - 1 do
  local at = 4 + place * of_each
  local meta = redis.call('HGET', tag .. ':folder:' .. ARGV[at], ARGV[at + 1])
  local version = meta and tonumber(string.match(meta, '^%d+')) or -1
  local wanted = tonumber(ARGV[at + 2])
  -- As `condition` in redis.rs numbers them.
  local holds = wanted == -3 or (wanted == -2 and version >= 0) or version == wanted
  if not holds then
    return { 1, place, version }
  end
  known[place] = meta
end

local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2]))
-- If Redis accepts no writes, it refuses the first one.
local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
local shown = string.format('%.0f', revision)
redis.call('HSET', KEYS[1], 'nonce', nonce, 'format', '1')
redis.call('HSET', tag .. ':nonces', shown, nonce)
redis.call('HDEL', tag .. ':nonces', string.format('%.0f', revision - kept))
for place = 0, count - 1 do
  local at = 4 + place * of_each
  local folder, name, change, data = tag .. ':folder:' .. ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
  local record = tag .. ':record:' .. ARGV[at] .. '/' .. name
  if change == 'put' then
    local version, created, created_at = 0, shown, now
    if known[place] then
      local before
      before, created, created_at = string.match(known[place], '^(%d+) (%d+) %d+ (%d+)')
      version = tonumber(before) + 1
    end
    local meta = string.format('%.0f %s %s %s %s %d', version, created, shown, created_at, now, #data)
    redis.call('HSET', folder, name, meta)
    redis.call('SET', record, data)
  elseif change == 'delete' then
    redis.call('HDEL', folder, name)
    redis.call('DEL', record)
  end
end
-- A hint, without which the commit counts all the same.
redis.pcall('PUBLISH', tag .. ':changed', shown)
return { 0, revision, now }
