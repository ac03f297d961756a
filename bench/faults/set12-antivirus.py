"""An on-access virus scanner on the host: each open(2) of a file of the container's volume waits 30 ms for its verdict, one
after the other (fanotify, FAN_OPEN_PERM). The mark ends with this process."""
import ctypes
import os
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, FAN_CLASS_CONTENT, FAN_CLOEXEC, FAN_MARK_ADD = -100, 4, 1, 1
FAN_OPEN_PERM, FAN_EVENT_ON_CHILD, FAN_ALLOW = 0x10000, 0x08000000, 1

root = None
while root is None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                args = f.read().split(b"\0")
        except OSError:
            continue
        if args[0].endswith(b"set12-app") and args[1:2] == [b"pages"] and os.path.exists(f"/proc/{pid}/root/data/page-9"):
            root = f"/proc/{pid}/root/data"
    time.sleep(0.3)

fan = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
if fan < 0:
    sys.exit(f"fanotify_init: {os.strerror(ctypes.get_errno())}")
libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
if libc.fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, AT_FDCWD, root.encode()):
    sys.exit(f"fanotify_mark: {os.strerror(ctypes.get_errno())}")
print("ready", flush=True)
event = struct.Struct("=IBBHQii")
while True:
    data = os.read(fan, 4096)
    while len(data) >= event.size:
        length, _, _, _, _, fd, _ = event.unpack_from(data)
        data = data[length:]
        if fd >= 0:
            time.sleep(0.03)  # the scan
            os.write(fan, struct.pack("=iI", fd, FAN_ALLOW))
            os.close(fd)
