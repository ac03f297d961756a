#!/bin/sh
# Makes and removes COUNT memory control groups, each of which still owns page cache when it
# goes: Documentation/admin-guide/cgroup-v1/memory.rst, section 4.2, and cgroup-v2.rst.
root=/sys/fs/cgroup/memory
[ -d "$root" ] || root=/sys/fs/cgroup
mkdir -p "$root/fault-groups"
# v2: without the controller, groups below it own no page cache. v1 has no such file.
[ ! -e "$root/fault-groups/cgroup.subtree_control" ] || echo +memory >"$root/fault-groups/cgroup.subtree_control"
echo ready
i=0
while [ "$i" -lt "$1" ]; do
	mkdir "$root/fault-groups/$i"
	sh -c "echo \$\$ >$root/fault-groups/$i/cgroup.procs; echo $i >/tmp/fault-groups-$i"
	rmdir "$root/fault-groups/$i" 2>/dev/null
	i=$((i + 1))
done
sleep 60
