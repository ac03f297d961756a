"""A script of the host that runs a health check by exec in each container of the set, four at once, without a pause."""
import http.client
import json
import os
import socket
import sys
import threading
import time


class Engine(http.client.HTTPConnection):
    def __init__(self):
        super().__init__("docker", timeout=20)
        self.where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

    def connect(self):
        if self.where.startswith("unix://"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(20)
            self.sock.connect(self.where[len("unix://"):])
        else:
            host, _, port = self.where.split("://")[-1].rstrip("/").partition(":")
            self.sock = socket.create_connection((host, int(port or 2375)), 20)


def call(method, path, body=None):
    c = Engine()
    try:
        c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def names():
    status, text = call("GET", "/containers/json")
    found = json.loads(text) if status == 200 else []
    mine = [c["Id"] for c in found if any("p17-" in n for n in c.get("Names", []))]
    return mine or [c["Id"] for c in found]


checks = 0


def loop():
    global checks
    while True:
        try:
            for i in names():
                status, text = call("POST", f"/containers/{i}/exec",
                                    {"Cmd": ["/bin/true"], "AttachStdout": True, "AttachStderr": True})
                if status == 201:
                    call("POST", f"/exec/{json.loads(text)['Id']}/start", {"Detach": False, "Tty": False})
                    checks += 1
        except (OSError, ValueError, http.client.HTTPException) as e:
            print(e, file=sys.stderr, flush=True)
            time.sleep(0.5)


for _ in range(4):
    threading.Thread(target=loop, daemon=True).start()
end = time.time() + 13
while checks < 4 and time.time() < end:
    time.sleep(0.2)
print("ready", flush=True)
while True:
    time.sleep(10)
    print("checks", checks, flush=True)
