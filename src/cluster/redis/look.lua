-- Reads several things at one moment.
--
-- KEYS[1]: the hash of the newest commit. ARGV: what begins all keys, then of each part: its kind, a folder, a name.
-- Returns { revision, nonce, part, … }. Of a part: `meta`: the text that commit.lua writes; `record`: that and the data;
-- `names`: names and texts in turn; `nonce`: that of the commit with this revision.

if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY this server is a replica')
end

local tag = ARGV[1]
local head = redis.call('HMGET', KEYS[1], 'revision', 'nonce')
local found = { head[1] or '0', head[2] or '0' }
for at = 2, #ARGV, 3 do
  local kind, folder, name = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if kind == 'names' then
    found[#found + 1] = redis.call('HGETALL', tag .. ':folder:' .. folder)
  elseif kind == 'nonce' then
    found[#found + 1] = redis.call('HGET', tag .. ':nonces', name)
  else
    local part = redis.call('HGET', tag .. ':folder:' .. folder, name)
    if part and kind == 'record' then
      part = { part, redis.call('GET', tag .. ':record:' .. folder .. '/' .. name) }
    end
    found[#found + 1] = part
  end
end
return found
