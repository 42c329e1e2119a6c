# kazoo_lock.py SERVERS PATH [KIND [N]]: prints `connected`, queues for the lock, prints `acquired NODE`; on a line on
# stdin: `released`. KIND is
#   mutex        Lock that also waits for Curator's and our names (the default)
#   plain        Lock as it is, which sees only kazoo's names
#   read, write  ReadLock and WriteLock that also wait for Curator's names
#   plain-read, plain-write
#                ReadLock and WriteLock as they are
#   semaphore    Semaphore with N leases
#   barrier      Barrier: `acquired` when it opens, without a NODE
#   double-barrier
#                DoubleBarrier for N: `acquired` when all have entered, `released` when all have left
import sys

from kazoo.client import KazooClient
from kazoo.recipe.barrier import Barrier, DoubleBarrier
from kazoo.recipe.lock import Lock, ReadLock, Semaphore, WriteLock

# The lock and the patterns of the other libraries' znodes that exclude it.
LOCKS = {
    "mutex": (Lock, ["-lock-"]),
    "plain": (Lock, []),
    "read": (ReadLock, ["__WRIT__", "-lock-"]),
    "plain-read": (ReadLock, []),
    "write": (WriteLock, ["__READ__", "__WRIT__", "-lock-"]),
    "plain-write": (WriteLock, []),
}


def take(client, path, kind, number):
    """Blocks until the recipe's turn has come. Returns the name of its znode and how to give it back."""
    if kind in LOCKS:
        lock_type, patterns = LOCKS[kind]
        lock = lock_type(client, path, "kazoo", extra_lock_patterns=patterns)
        lock.acquire()
        return lock.node, lock.release
    if kind == "semaphore":
        semaphore = Semaphore(client, path, "kazoo", max_leases=number)
        semaphore.acquire()
        return semaphore.create_path.rpartition("/")[2], semaphore.release
    if kind == "barrier":
        Barrier(client, path).wait()
        return "", lambda: None
    if kind == "double-barrier":
        barrier = DoubleBarrier(client, path, number, "kazoo")
        barrier.enter()
        # `enter` raises nothing if it fails.
        assert barrier.participating, "the double barrier was not entered"
        return barrier.node_name, barrier.leave
    raise SystemExit(f"kazoo has no {kind}")


servers, path = sys.argv[1:3]
kind = sys.argv[3] if len(sys.argv) > 3 else "mutex"
number = int(sys.argv[4]) if len(sys.argv) > 4 else 0
client = KazooClient(hosts=servers, timeout=4.0)
client.start(timeout=60)
print("connected", flush=True)
node, give_back = take(client, path, kind, number)
print("acquired", node, flush=True)
sys.stdin.readline()
give_back()
print("released", flush=True)
client.stop()
