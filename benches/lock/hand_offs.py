# hand_offs.py LIBRARY SERVERS PATH CONTENDERS SECONDS SESSIONS: how often per second a Lock of the library, kazoo or
# redis, passes from one contender to the next.
# Each contender has its own thread, and queues again as soon as it has released. Prints one number, counted
# after two seconds of warm-up. Ends with 1 if two contenders ever hold the lock, or if one fails.
import os
import sys
import threading
import time

held = threading.Lock()
over = threading.Event()
# The lock under test guards the increment.
hand_offs = 0


# What makes a lock of this client, and what ends the client.
def kazoo(servers):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=servers)
    client.start(timeout=60)
    return client.Lock, lambda: (client.stop(), client.close())


def redis(servers):
    from redis import Redis

    client = Redis.from_url(servers)
    # As its users write it: it tries again ten times a second.
    return lambda path: client.lock(path, timeout=10), client.close


def contend(make, path):
    global hand_offs
    lock = make(path)
    try:
        while not over.is_set():
            with lock:
                if not held.acquire(blocking=False):
                    fail("two contenders hold the lock")
                hand_offs += 1
                # Lets other threads run, which would otherwise hardly ever see the flag.
                time.sleep(0)
                held.release()
    except Exception as error:
        fail(f"a contender failed: {error!r}")


def per_second(seconds):
    start, before = time.monotonic(), hand_offs
    time.sleep(seconds)
    return (hand_offs - before) / (time.monotonic() - start)


def fail(why):
    print(why, file=sys.stderr, flush=True)
    # Other threads may wait for the lock, and the interpreter would wait for them.
    os._exit(1)


library, servers, path, contenders, seconds, sessions = sys.argv[1:]
clients = [{"kazoo": kazoo, "redis": redis}[library](servers) for _ in range(int(sessions))]
of_contender = [clients[i % len(clients)] for i in range(int(contenders))]
threads = [threading.Thread(target=contend, args=(make, path)) for make, _ in of_contender]
for thread in threads:
    thread.start()
time.sleep(2)
rate = per_second(float(seconds))
over.set()
for thread in threads:
    thread.join()
for _, end in clients:
    end()
print(f"{rate:.1f}")
