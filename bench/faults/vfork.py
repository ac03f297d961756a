"""40 processes in uninterruptible sleep that harm nobody: each waits for its child of vfork(2).
They raise the load average, proc_loadavg(5)."""
import ctypes
import os
import time

libc = ctypes.CDLL(None)
for _ in range(40):
    if os.fork() == 0:
        if libc.vfork() == 0:
            libc.pause()
        os._exit(0)
print("ready", flush=True)
time.sleep(3600)
