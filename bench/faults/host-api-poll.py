"""A monitoring agent of the host asks the container engine for everything in a loop: the containers with their sizes, the
details and statistics of each, the images. The work is done by the agent and by the engine, outside containers."""
import http.client
import json
import os
import socket
import threading

address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Engine(http.client.HTTPConnection):
    def connect(self):
        if address.startswith("unix://"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(20)
            self.sock.connect(address[len("unix://"):])
        else:
            host, _, port = address.split("://")[-1].partition(":")
            self.sock = socket.create_connection((host, int(port or 2375)), 20)


def get(path):
    c = Engine("localhost")
    try:
        c.request("GET", path)
        return json.loads(c.getresponse().read())
    finally:
        c.close()


def poll():
    while True:
        try:
            for c in get("/containers/json?all=1&size=1"):
                get(f"/containers/{c['Id']}/json?size=1")
                get(f"/containers/{c['Id']}/stats?stream=false&one-shot=1")
            get("/images/json")
            get("/info")
        except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
            pass  # a container may have ended


get("/info")  # an engine that does not answer is an error
for _ in range(8):
    threading.Thread(target=poll, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
