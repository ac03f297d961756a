"""A client asks five times a second whether an optional server is up; it is not, each connection is refused, and it waits."""
import socket
import time

print("ready", flush=True)
while True:
    with socket.socket() as s:
        s.settimeout(1)
        try:
            s.connect(("127.0.0.1", 9))
        except OSError:
            pass
    sum(i * i for i in range(2000))
    time.sleep(0.2)
