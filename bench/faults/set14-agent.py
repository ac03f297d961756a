"""A monitoring agent: N collectors read smaps, maps, fds and status of every process and memory files of every group without a pause."""
import glob, os, sys, time

def read(path):
    try:
        with open(path, "rb") as f:
            while f.read(1 << 18):
                pass
    except OSError:
        pass

def collect():
    while True:
        pids = [p for p in os.listdir("/proc") if p.isdigit()]
        for p in pids:
            for name in ("smaps", "smaps_rollup", "stat", "status", "io"):
                read("/proc/%s/%s" % (p, name))
            try:
                for fd in os.listdir("/proc/%s/fd" % p):
                    try:
                        os.readlink("/proc/%s/fd/%s" % (p, fd))
                    except OSError:
                        pass
            except OSError:
                pass
        for name in glob.glob("/sys/fs/cgroup/memory/**/memory.stat", recursive=True)[:500]:
            read(name)
            read(os.path.join(os.path.dirname(name), "memory.numa_stat"))
        for name in ("/proc/slabinfo", "/proc/net/tcp", "/proc/vmallocinfo", "/proc/mounts"):
            read(name)

n = int(sys.argv[1]) if len(sys.argv) > 1 else 2
for _ in range(n):
    if os.fork() == 0:
        collect()
print("ready", flush=True)
while True:
    time.sleep(60)
