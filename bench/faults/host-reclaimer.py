"""A memory manager of the host, meant to find the working set of containers, is set too eager: five times a second it tells
the kernel to reclaim the memory of the container of "tenant read" (memory.reclaim of cgroup 2, memory.force_empty of
cgroup 1), and the container reads its files from the disk again."""
import os
import sys
import time


def control_group():
    """Returns the file to write to, and what."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                argv = f.read().split(b"\0")
            if os.path.basename(argv[0]) != b"tenant" or argv[1:2] != [b"read"]:
                continue
            with open(f"/proc/{pid}/cgroup") as f:
                lines = [line.rstrip("\n").split(":", 2) for line in f]
        except (OSError, IndexError):
            continue
        for _, kind, path in lines:
            if "memory" in kind.split(","):
                for root in roots("cgroup", "memory"):
                    name = f"{root}{path}/memory.force_empty"
                    if os.path.exists(name):
                        return name, "0"
            if kind == "":
                for root in roots("cgroup2", ""):
                    name = f"{root}{path}/memory.reclaim"
                    if os.path.exists(name):
                        return name, "512M"
    return None


def roots(kind, option):
    with open("/proc/mounts") as f:
        for line in f:
            _, where, fstype, options, *_ = line.split()
            if fstype == kind and (not option or option in options.split(",")):
                yield where


for _ in range(100):
    found = control_group()
    if found:
        break
    time.sleep(0.2)
else:
    sys.exit("no container runs tenant read, or its control group cannot reclaim")
print("ready", flush=True)
while True:
    try:
        fd = os.open(found[0], os.O_WRONLY)
        try:
            os.write(fd, found[1].encode())
        finally:
            os.close(fd)
    except FileNotFoundError:
        pass  # the container has ended
    except OSError:
        pass  # EAGAIN: less than that could be reclaimed
    time.sleep(0.2)
