#!/usr/bin/env python3
"""A discovery service of a container sends a packet to each address of a large network, and so fills the table of
neighbours, which all network namespaces of the host share (net.ipv4.neigh.default.gc_thresh3)."""
import socket
import subprocess
import time

IP = '/usr/bin/ip'
for command in ('link set lo up', 'link add v0 type veth peer name v1', 'link set v1 up', 'link set v0 up',
                'address add 10.77.0.1/16 dev v0'):
    subprocess.run([IP, *command.split()], check=True)
# packets that wait for an answer fill the buffer of their socket, so there are some sockets
outs = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(40)]
for s in outs:
    s.setblocking(False)
print('ready', flush=True)
n = refused = 0
while True:
    n = n % 60000 + 1
    try:
        outs[n // 10 % len(outs)].sendto(b'hello', (f'10.77.{n // 250}.{n % 250 + 2}', 9))
    except OSError:
        refused += 1
    if n % 10 == 0:
        time.sleep(0.005)
