"""A test suite: each test starts a process, makes and removes a temporary directory, talks over a socket; a few at a time."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

print("ready", flush=True)
n = 0
while True:
    n += 1
    d = tempfile.mkdtemp()
    for i in range(20):
        with open(os.path.join(d, f"fixture-{i}"), "w") as f:
            f.write("x" * 2000)
    a, b = socket.socketpair()
    a.sendall(b"hello")
    b.recv(16)
    a.close()
    b.close()
    if n % 5 == 0:
        subprocess.run([sys.executable, "-S", "-c", "assert sum(range(200000))"], check=False)
    sum(i * i for i in range(100000))
    shutil.rmtree(d)
    if n % 50 == 0:
        print(f"{n} passed", flush=True)
    time.sleep(0.03)
