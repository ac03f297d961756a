"""A scheduled virus scan of the host: N processes read files of /usr and hash them with several digests."""
import hashlib, os, sys, time, zlib

def walk(part, n):
    k = 0
    for top in ("/usr/lib", "/usr/bin", "/usr/share"):
        for d, _, names in os.walk(top):
            for name in names:
                k += 1
                if k % n == part:
                    yield os.path.join(d, name)

def scan(part, n):
    while True:
        begin = time.time()
        for path in walk(part, n):
            try:
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                with open(path, "rb") as f:
                    b = f.read(4 << 20)
            except OSError:
                continue
            hashlib.md5(b).digest()
            hashlib.sha256(b).digest()
            zlib.crc32(b)
            for sig in (b"X5O!P%@AP", b"eval(base64_decode", b"/bin/sh -i", b"stratum+tcp"):
                b.find(sig)
        if time.time() - begin < 0.05:
            hashlib.sha256(bytes(8 << 20)).digest()

n = int(sys.argv[1]) if len(sys.argv) > 1 else 3
for part in range(n):
    if os.fork() == 0:
        scan(part, n)
        os._exit(0)
print("ready", flush=True)
while True:
    time.sleep(60)
