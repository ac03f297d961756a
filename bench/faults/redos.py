"""A validator of addresses backtracks without end: each bad request occupies one more worker, up to six."""
import os
import re
import time

pattern = re.compile(r"^([a-zA-Z0-9._-]+)+@example\.com$")
for n in range(6):
    if os.fork() == 0:
        while True:
            pattern.match("a" * 34)
    if n == 3:
        print("ready", flush=True)
    time.sleep(0.5)
while True:
    time.sleep(60)
