"""A sort that spills MIB mebibytes to a temporary file without a name, tmpfile(3), reads it back
and releases it, once in SECONDS seconds."""
import sys
import tempfile
import time

mib, seconds = int(sys.argv[1]), float(sys.argv[2])
block = bytes(1 << 20)
print("ready", flush=True)
while True:
    with tempfile.TemporaryFile(dir="/data") as f:
        for _ in range(mib):
            f.write(block)
            time.sleep(seconds / mib / 3)
        f.seek(0)
        while f.read(1 << 16):
            pass
        time.sleep(seconds / 3)
    time.sleep(seconds / 3)
