"""A healthy database: 20 transactions a second, each on the disk before it ends."""
import sqlite3
import time

db = sqlite3.connect("/data/db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v TEXT)")
print("ready", flush=True)
n = 0
while True:
    n += 1
    db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (n % 1000, "x" * 200))
    db.execute("SELECT count(*) FROM t WHERE k < 100").fetchone()
    time.sleep(0.05)
