"""A memory profiler outside containers reads the flags and the control group of each page of the
host again and again, Documentation/admin-guide/mm/pagemap.rst: kpageflags and kpagecgroup."""
import sys
import threading

names = ["/proc/kpageflags", "/proc/kpagecgroup"]


def read(name):
    while True:
        with open(name, "rb", buffering=0) as f:
            while f.read(1 << 20):
                pass


for i in range(int(sys.argv[1])):
    threading.Thread(target=read, args=(names[i % 2],), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
