"""Asks a name server that does not answer, with a timeout of a second, as resolv.conf(5)'s
resolver does: each request of this service waits for it."""
import socket
import struct

dead = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # bound and never read
dead.bind(("127.0.0.1", 53))
print("ready", flush=True)
n = 0
while True:
    n += 1
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    query = struct.pack(">HHHHHH", n & 0xFFFF, 0x0100, 1, 0, 0, 0) + b"\7example\3org\0" + struct.pack(">HH", 1, 1)
    s.sendto(query, ("127.0.0.1", 53))
    try:
        s.recv(512)
    except socket.timeout:
        pass
    s.close()
