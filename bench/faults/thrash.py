"""Reads a file of MIB mebibytes again and again: more than the container's memory limit
holds, so that each read goes to the disk.
Documentation/admin-guide/cgroup-v2.rst, memory.max and workingset_refault_file."""
import os
import sys
import time

mib = int(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 0
with open("/data/file", "wb") as f:
    for _ in range(mib):
        f.write(os.urandom(1 << 20))
    os.fsync(f.fileno())
print("ready", flush=True)
n = 0
while not rounds or n < rounds:
    n += 1
    with open("/data/file", "rb", buffering=0) as f:
        while f.read(1 << 16):
            pass
while True:
    time.sleep(3600)
