"""login-wave SECONDS THREADS: the login page of a school. Each SECONDS a class logs in, and THREADS threads compute
password hashes (PBKDF2, without the interpreter's lock) for about 2 s; between the waves nothing happens."""
import hashlib
import sys
import threading
import time

pause, count = float(sys.argv[1]), int(sys.argv[2])


def hashes(until):
    n = 0
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt%d" % n, 20000)
        n += 1


first = True
while True:
    begin = time.monotonic()
    threads = [threading.Thread(target=hashes, args=(begin + 2,)) for _ in range(count)]
    for t in threads:
        t.start()
    if first:
        print("ready", flush=True)
        first = False
    for t in threads:
        t.join()
    time.sleep(max(0, begin + pause - time.monotonic()))
