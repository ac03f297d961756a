"""A slice above all containers has a limit of the disk that was meant for a test: ten writes and forty reads a second. The limit is written
to the control group above that of a running container (v2: io.max); with v1 to each container's own (blkio.throttle). What was written is
noted for iocap-undo.py."""
import glob
import os
import sys
import time

NOTE = "/var/tmp/iocap.groups"


def groups():
    """The control groups of processes "bystander commits", by version."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path, "rb").read().split(b"\0")
            lines = open(os.path.dirname(path) + "/cgroup").read().split("\n")
        except OSError:
            continue
        if len(words) < 2 or not words[0].endswith(b"bystander") or words[1] != b"commits":
            continue
        for line in lines:
            number, _, rest = line.partition(":")
            names, _, group = rest.partition(":")
            if "blkio" in names.split(","):
                yield 1, "/sys/fs/cgroup/blkio" + group
            elif number == "0":
                yield 2, "/sys/fs/cgroup" + group


def disks():
    """The numbers of the disk below the directories of containers and of /data."""
    found = set()
    for path in ("/var/lib/docker", "/var/tmp", "/", "/tmp", os.environ.get("FAULT", "/")):
        try:
            dev = os.stat(path).st_dev
        except OSError:
            continue
        number = "%d:%d" % (os.major(dev), os.minor(dev))
        whole = "/sys/dev/block/" + number
        if os.path.exists(whole + "/partition"):
            number = open(os.path.realpath(whole) + "/../dev").read().strip()
        if os.path.exists("/sys/dev/block/" + number):
            found.add(number)
    return found


def put(path, text):
    with open(path, "w") as f:
        f.write(text)


def cap(version, group, disk):
    if version == 2:
        parent = os.path.dirname(group.rstrip("/"))
        path = parent + "/io.max"
        if os.path.exists(path):
            put(path, disk + " riops=40 wiops=10")
            return [(path, disk + " riops=max wiops=max")]
        return []
    done = []
    for name, number in (("read", 40), ("write", 10)):
        path = "%s/blkio.throttle.%s_iops_device" % (group, name)
        if os.path.exists(path):
            put(path, "%s %d" % (disk, number))
            done.append((path, disk + " 0"))
    return done


said = False
capped = set()
for _ in range(100000):
    for version, group in set(groups()):
        for disk in disks():
            if (version, group, disk) in capped:
                continue
            try:
                done = cap(version, group, disk)
            except OSError as e:
                print(group, disk, e, file=sys.stderr)
                continue
            if done:
                capped.add((version, group, disk))
                with open(NOTE, "a") as f:
                    for path, text in done:
                        f.write(path + "\t" + text + "\n")
    if capped and not said:
        said = True
        print("ready", flush=True)
    time.sleep(0.5)
