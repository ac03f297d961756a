"""A scheduler on the host starts a container for each small job, and removes it: about as many a second as the engine can,
two at a time. `undo` as an argument removes what is left."""
import http.client
import json
import os
import socket
import sys
import threading
import time


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def call(method, path, body=None):
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    kind, _, rest = address.partition("://")
    c = Unix(rest) if kind == "unix" else http.client.HTTPConnection(rest, timeout=30)
    try:
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        text = c.getresponse().read()
        return json.loads(text) if text.startswith((b"{", b"[")) else None
    finally:
        c.close()


def undo():
    filters = "%7B%22label%22%3A%5B%22set12%3Djob%22%5D%7D"
    for x in call("GET", f"/containers/json?all=1&filters={filters}") or []:
        call("DELETE", f"/containers/{x['Id']}?force=1")


def jobs(lane, image):
    n = 0
    while True:
        n += 1
        try:
            made = call("POST", f"/containers/create?name=set12-job-{lane}-{n}", {
                "Image": image, "Entrypoint": ["/bin/busybox"], "Cmd": ["true"], "Labels": {"set12": "job"},
                "HostConfig": {"NetworkMode": "none", "Memory": 64 << 20}})
            if not made or "Id" not in made:
                print(made, flush=True)
                time.sleep(1)
                continue
            call("POST", f"/containers/{made['Id']}/start")
            call("POST", f"/containers/{made['Id']}/wait")
            call("DELETE", f"/containers/{made['Id']}?force=1")
        except (OSError, ValueError, http.client.HTTPException) as e:
            print(e, flush=True)
            time.sleep(1)
        if n == 2 and lane == 0:
            print("ready", flush=True)


if sys.argv[1:] == ["undo"]:
    for _ in range(3):
        try:
            undo()
        except (OSError, ValueError, http.client.HTTPException) as e:
            print(e, flush=True)
        time.sleep(0.5)
else:
    image = call("GET", "/containers/json")[0]["Image"]
    threading.Thread(target=jobs, args=(1, image), daemon=True).start()
    jobs(0, image)
