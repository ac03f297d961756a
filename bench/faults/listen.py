"""A server whose accept queue is full, listen(2) and ip-sysctl's tcp_abort_on_overflow: the
kernel drops its clients' handshakes, and they try again after a second, then two."""
import socket
import threading
import time

server = socket.socket()
server.bind(("127.0.0.1", 8080))
server.listen(4)


def client():
    while True:
        c = socket.socket()
        c.settimeout(3)
        try:
            c.connect(("127.0.0.1", 8080))
            c.sendall(b"x")
            c.recv(1)
        except OSError:
            pass
        c.close()
        time.sleep(0.01)


for _ in range(100):
    threading.Thread(target=client, daemon=True).start()
print("ready", flush=True)
while True:  # accepts far fewer than it is asked to
    time.sleep(0.5)
    conn, _ = server.accept()
    conn.close()
