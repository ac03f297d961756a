"""Takes the limits away that iocap.py has written."""
import os

NOTE = "/var/tmp/iocap.groups"
if os.path.exists(NOTE):
    for line in open(NOTE):
        path, _, text = line.rstrip("\n").partition("\t")
        try:
            with open(path, "w") as f:
                f.write(text)
        except OSError:
            pass  # the group is gone, and its limit with it
    os.remove(NOTE)
