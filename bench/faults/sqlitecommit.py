"""COUNT processes that record measurements in SQLite, one transaction a row, with the rollback journal and full sync."""
import os
import sqlite3
import sys

count = int(sys.argv[1])
for number in range(count - 1):
    if os.fork() == 0:
        break
else:
    number = count
base = sqlite3.connect(f"/data/states-{number}.db", isolation_level=None)
base.execute("pragma journal_mode=delete")
base.execute("pragma synchronous=full")
base.execute("create table if not exists states (id integer primary key, entity text, value real)")
if number == count:
    print("ready", flush=True)
n = 0
while True:
    n += 1
    base.execute("insert or replace into states values (?, ?, ?)", (n % 2000, f"sensor.room_{n % 50}", n * 0.1))
