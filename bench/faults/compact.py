"""Compacts the host's memory again and again, Documentation/admin-guide/sysctl/vm.rst:
compact_memory migrates pages of all zones and holds their locks."""
import time

print("ready", flush=True)
while True:
    with open("/proc/sys/vm/compact_memory", "w") as f:
        f.write("1")
    time.sleep(0.2)
