"""A check of the integrity of the host, started by cron without nice(1): three processes compute the SHA-512 and the MD5 of
all files of /usr, again and again. It only reads."""
import hashlib
import os
import sys
import time


def check(part):
    while True:
        n = 0
        for where, dirs, names in os.walk("/usr"):
            dirs.sort()
            for name in sorted(names):
                n += 1
                path = os.path.join(where, name)
                try:
                    if n % 3 != part or os.path.islink(path) or os.path.getsize(path) > 64 << 20:
                        continue
                    a, b = hashlib.sha512(), hashlib.md5()
                    with open(path, "rb") as f:
                        while piece := f.read(1 << 18):
                            a.update(piece)
                            b.update(piece)
                except OSError:
                    pass


for part in range(3):
    if os.fork() == 0:
        check(part)
        sys.exit()
print("ready", flush=True)
while True:
    time.sleep(60)
