"""A healthy test suite: each case starts a process, writes a few temporary files and computes a little."""
import os
import subprocess
import tempfile

print("ready", flush=True)
n = 0
while True:
    n += 1
    with tempfile.TemporaryDirectory(dir="/tmp") as d:
        for i in range(20):
            with open(os.path.join(d, f"case-{i}.json"), "w") as f:
                f.write('{"id": %d}\n' % i * 50)
        sum(i * i % 7 for i in range(60000))
        subprocess.run(["/bin/sh", "-c", "true"], check=False)
    if n % 20 == 0:
        print(f"test_{n} ... ok", flush=True)
