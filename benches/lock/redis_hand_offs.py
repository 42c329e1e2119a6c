# redis_hand_offs.py URL PATH CONTENDERS SECONDS SESSIONS: how often per second a Lock passes from one contender to the next.
# Each contender has its own thread, and queues again as soon as it has released. Prints one number, counted
# after two seconds of warm-up. Ends with 1 if two contenders ever hold the lock, or if one fails.
import os
import sys
import threading
import time

from redis import Redis

held = threading.Lock()
over = threading.Event()
# The lock under test guards the increment.
hand_offs = 0


def connect(url):
    return Redis.from_url(url)


def contend(client, path):
    global hand_offs
    # As its users write it: it tries again ten times a second.
    lock = client.lock(path, timeout=10)
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


url, path, contenders, seconds, sessions = sys.argv[1:]
clients = [connect(url) for _ in range(int(sessions))]
of_contender = [clients[i % len(clients)] for i in range(int(contenders))]
threads = [threading.Thread(target=contend, args=(client, path)) for client in of_contender]
for thread in threads:
    thread.start()
time.sleep(2)
rate = per_second(float(seconds))
over.set()
for thread in threads:
    thread.join()
for client in clients:
    client.close()
print(f"{rate:.1f}")
