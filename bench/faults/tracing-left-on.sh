#!/bin/sh
# The tracing of the kernel is still on since the host was debugged last week: each system call, switch and allocation is recorded
# with its stack in an instance of tracefs that no program reads.
for t in /sys/kernel/tracing /sys/kernel/debug/tracing; do [ -d $t/instances ] && break; done
[ -d $t/instances ] || { echo "no tracefs" >&2; exit 1; }
i=$t/instances/set6-left-on
mkdir -p $i || exit 1
echo 1024 >$i/buffer_size_kb
echo 1 >$i/options/stacktrace
for e in raw_syscalls sched/sched_switch sched/sched_wakeup kmem/kmalloc kmem/kmem_cache_alloc kmem/mm_page_alloc; do
	echo 1 >$i/events/$e/enable && on=1
done
[ "$on" ] || exit 1
echo 1 >$i/tracing_on
echo ready
while :; do sleep 60; done
