# kazoo_lock.py SERVERS PATH: prints `connected`, queues for the lock, prints `acquired NODE`; on a line on stdin:
# `released`.
import sys

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

client = KazooClient(hosts=sys.argv[1], timeout=4.0)
client.start(timeout=60)
lock = Lock(client, sys.argv[2], "kazoo", extra_lock_patterns=["-lock-"])
print("connected", flush=True)
lock.acquire()
print("acquired", lock.node, flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
client.stop()
