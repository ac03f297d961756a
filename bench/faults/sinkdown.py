"""A log shipper whose sink does not answer keeps all records in memory: 60 MiB at first, 3 MiB more each second, and 185 MiB at most."""
import collections
import time

queue = collections.deque()
size = 0
while size < 60 << 20:
    queue.append(bytes([size % 251]) * 65536)
    size += 65536
print("ready", flush=True)
while True:
    queue.append(bytes([size % 251]) * 65536)
    size += 65536
    if size > 185 << 20:
        queue.popleft()
        size -= 65536
    time.sleep(0.02)
