"""A healthy service: COUNT times a second it computes a little, writes a line and reads it."""
import sys
import time

pause = 1 / float(sys.argv[1])
print("ready", flush=True)
n = 0
while True:
    n += 1
    sum(i * i for i in range(500))
    with open("/tmp/line", "w") as f:
        f.write(f"request {n}\n")
    with open("/tmp/line") as f:
        f.read()
    time.sleep(pause)
