"""A container's own backup: compresses 5 MB a second of its 100 MB of data, at low priority, and writes the archive."""
import os
import time
import zlib

os.nice(10)
block = os.urandom(1 << 19) + bytes(1 << 19)
with open("/data/volume", "wb") as f:
    for _ in range(100):
        f.write(block)
print("ready", flush=True)
while True:
    z = zlib.compressobj(1)
    with open("/data/volume", "rb") as f, open("/data/archive.gz", "wb") as out:
        while part := f.read(1 << 20):
            out.write(z.compress(part))
            time.sleep(0.2)
        out.write(z.flush())
