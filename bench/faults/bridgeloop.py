#!/usr/bin/env python3
"""A router in a container joins two bridges with two cables and without spanning tree: one broadcast goes round
for ever. All of it ends with the network namespace."""
import socket
import subprocess
import time

IP = '/usr/bin/ip'
for command in ('link add br0 type bridge', 'link add br1 type bridge', 'link add a0 type veth peer name a1',
                'link add b0 type veth peer name b1', 'link set a0 master br0', 'link set b0 master br0',
                'link set a1 master br1', 'link set b1 master br1', 'address add 10.78.0.1/24 dev br0',
                *(f'link set {d} up' for d in ('a0', 'a1', 'b0', 'b1', 'br0', 'br1'))):
    subprocess.run([IP, *command.split()], check=True)
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
out.sendto(b'hello', ('10.78.0.255', 9))
print('ready', flush=True)
while True:
    time.sleep(1)
    try:
        out.sendto(b'hello', ('10.78.0.255', 9))
    except OSError:
        pass
