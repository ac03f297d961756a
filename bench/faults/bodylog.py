"""A service prints the whole body of each request, 16 KiB, 200 times a second; nothing rotates the log of the engine."""
import json
import sys
import time

body = {"user": 4711, "items": [{"sku": f"article-{i}", "count": i % 7, "note": "x" * 40} for i in range(170)]}
text = json.dumps(body)
print("ready", flush=True)
written = 0
while True:
    if written < 300 << 20:  # bounded
        for _ in range(20):
            line = f"INFO request body={text}\n"
            sys.stdout.write(line)
            written += len(line)
        sys.stdout.flush()
    time.sleep(0.1)
