"""A CI agent's builds leave image layers and build cache: MB MiB a second in files of 16 KiB to 4 MiB, MAX MiB at most, none is removed."""
import os, sys, time

rate, most = int(sys.argv[1]), min(int(sys.argv[2]), 3500)
top = "/data/set14-layers" if os.access("/data", os.W_OK) else "/var/tmp/set14-layers"
os.makedirs(top, exist_ok=True)
block = os.urandom(4 << 20)
sizes = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
print("ready", flush=True)
done, k, begin = 0, 0, time.time()
while True:
    if done < most << 20:
        layer = "%s/overlay-%d/diff" % (top, k // 40)
        os.makedirs(layer, exist_ok=True)
        size = sizes[k * 7 % 5]
        fd = os.open("%s/f%d" % (layer, k), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, block[:size])
        if k % 40 == 39:
            os.fsync(fd)
        os.close(fd)
        done += size
        k += 1
    ahead = done / (rate << 20) - (time.time() - begin)
    if ahead > 0 or done >= most << 20:
        time.sleep(min(max(ahead, 0.01), 1))
