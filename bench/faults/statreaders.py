"""Reads the statistics of every control group in a loop, as a monitoring agent with a much too
short interval does. Documentation/admin-guide/cgroup-v2.rst: memory.stat and cpu.stat are
summed over all CPUs and descendants when they are read."""
import os
import sys
import threading

names = {"memory.stat", "cpu.stat", "memory.numa_stat"}
files = [os.path.join(d, n) for d, _, fs in os.walk("/sys/fs/cgroup") for n in fs if n in names]


def read():
    while True:
        for f in files:
            try:
                with open(f, "rb", buffering=0) as h:
                    h.read(1 << 16)
            except OSError:
                pass


for _ in range(int(sys.argv[1])):
    threading.Thread(target=read, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
