"""A daemon of the host repeats an error into its log file without a limit: 12 MiB a second, 720 MiB at most."""
import time

line = b"Nov 29 13:00:00 node agentd[812]: error: connection to 10.0.0.1:443 refused, retrying immediately\n"
block = line * ((3 << 20) // len(line))
size = 0
with open("/var/tmp/set8-agentd.log", "wb", buffering=0) as log:
    print("ready", flush=True)
    while True:
        if size < 720 << 20:
            size += log.write(block)
        time.sleep(0.25)
