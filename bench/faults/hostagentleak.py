"""A daemon of the host buffers the logs of containers for a server that does not answer: 6 MiB more each second, 600 MiB at most."""
import time

kept = []
for n in range(9):
    kept.append(bytearray(b"x" * (6 << 20)))
print("ready", flush=True)
while True:
    if len(kept) < 100:
        kept.append(bytearray(b"x" * (6 << 20)))
    time.sleep(1)
