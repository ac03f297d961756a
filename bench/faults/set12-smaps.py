"""An exporter on the host reads /proc/PID/smaps of all processes, again as soon as it is done (two collectors)."""
import os

reader = os.fork()
first = reader != 0
while True:
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/smaps", "rb") as f:
                for line in f:
                    if line.startswith(b"Pss:"):
                        total += int(line.split()[1])
        except OSError:
            pass
    if first:
        print("ready", flush=True)
        first = False
