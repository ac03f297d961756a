"""A nightly job outside containers compresses logs with THREADS threads at the highest level,
as logrotate(8) does with gzip -9, and it has no lower priority."""
import sys
import threading
import zlib

log = b"".join(b"%d GET /item/%d 200 %d\n" % (i, i * 7919 % 100003, i * 31 % 5000) for i in range(200000))


def work():
    while True:
        zlib.compress(log, 9)


for _ in range(int(sys.argv[1])):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
