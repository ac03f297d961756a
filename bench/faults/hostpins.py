#!/usr/bin/env python3
"""A tuning agent of the host binds all database tasks of the containers to CPU 0, and leaves the other CPUs idle."""
import glob
import os
import time


def pin():
    found = 0
    for comm in glob.glob('/proc/[0-9]*/task/[0-9]*/comm'):
        try:
            with open(comm) as f:
                if f.read().strip() != 'orders-db':
                    continue
            os.sched_setaffinity(int(comm.split('/')[4]), {0})
            found += 1
        except OSError:
            pass
    return found


while not pin():
    time.sleep(0.5)
print('ready', flush=True)
while True:
    time.sleep(1)
    pin()
