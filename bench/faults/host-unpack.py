"""A package manager upgrades the host: as dpkg does, two processes write each file under a new name, call fsync(2), rename
it and flush the directory. At most 2 * 400 files of 16 KiB in /var/tmp/set6-unpack, which host-unpack-after.sh removes."""
import os
import time

root = "/var/tmp/set6-unpack"


def unpack(part):
    where = os.path.join(root, str(part))
    os.makedirs(where, exist_ok=True)
    n = 0
    while True:
        name = os.path.join(where, f"file-{n % 400}")
        fd = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, os.urandom(16384))
        os.fsync(fd)
        os.close(fd)
        os.rename(name + ".new", name)
        fd = os.open(where, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        n += 1


for part in range(2):
    if os.fork() == 0:
        unpack(part)
time.sleep(0.5)
print("ready", flush=True)
while True:
    time.sleep(60)
