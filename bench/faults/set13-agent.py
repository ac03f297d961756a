"""A monitoring agent of the host reads the memory maps of all processes again and again."""
import os

first = True
while True:
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        for name in ("smaps", "smaps_rollup", "maps"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as f:
                    while f.read(1 << 16):
                        pass
            except OSError:
                pass
    if first:
        print("ready", flush=True)
        first = False
