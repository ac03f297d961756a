"""label-growth START RATE LIMIT: an exporter of metrics with a label for each request: its table of time series has START
MiB and grows by RATE MiB a second, until the process has LIMIT MiB of resident memory."""
import sys
import time

start, rate, limit = (float(a) for a in sys.argv[1:4])
series = {}


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 2**20


def grow(mib):
    for _ in range(int(mib * 2**20 / 1200)):
        n = len(series)
        series[f'http_requests_total{{path="/user/{n}",code="200"}}'] = [n, bytearray(900)]


grow(start)
print("ready", flush=True)
while True:
    if resident() < limit:
        grow(rate / 4)
    time.sleep(0.25)
