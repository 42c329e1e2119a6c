-- Does what commit.lua does to a key of its own, which it removes: an error shows that the user lacks a right.
--
-- KEYS[1]: the key. ARGV: what begins all keys.

redis.call('INFO', 'replication')
redis.call('TIME')
redis.call('DEL', KEYS[1])
redis.call('HGET', KEYS[1], 'x')
redis.call('HMGET', KEYS[1], 'x')
redis.call('HGETALL', KEYS[1])
redis.call('HINCRBY', KEYS[1], 'x', 1)
redis.call('HSET', KEYS[1], 'y', 1)
redis.call('HDEL', KEYS[1], 'x')
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], 'x')
redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1] .. ':trial', 'x')
return redis.status_reply('OK')
