"""A log watcher of the host, such as fail2ban, matches all of a large log that was never rotated against its patterns,
with three processes (one for each jail)."""
import os
import re
import tempfile

log = tempfile.TemporaryFile("w+")
for i in range(30000):
    log.write(f"Nov 30 00:{i // 60 % 60:02}:{i % 60:02} host sshd[{i}]: Connection from 10.0.{i % 250}.{i % 199} port {i} on 10.0.0.1 user web-{i}\n")
log.flush()
lines = (log.seek(0), log.readlines())[1]
patterns = [re.compile(p) for p in (
    r"^.*(?:error|fail).* for .* from (?P<host>\S+)(?: port \d+)?$",
    r"^\S+ +\d+ \S+ \S+ .*Invalid user .* from (?P<host>\S+)",
    r"^.*(?:Received|Connection) (?:closed|reset) by .*?(?P<host>[\d.]+) .*preauth.*$",
    r"^.*maximum authentication attempts exceeded for .* from (?P<host>\S+)")]
for jail in range(3):
    if os.fork() == 0:
        while True:
            for line in lines:
                for p in patterns:
                    p.search(line)
print("ready", flush=True)
while True:
    os.wait()
