# The AppArmor profile of containers on containerd. Its rules are those of Docker's
# docker-default (apparmor.d(5) has the syntax). NAME is the profile's own name, DAEMON the
# agent's profile, and BASE includes the host's abstractions/base if it has them.

profile NAME flags=(attach_disconnected,mediate_deleted) {
  BASE

  file,
  network,
  capability,
  umount,

  # Signals come from the host, from the runtime, from the agent, and from the container.
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (receive) peer=DAEMON,
  signal (send, receive) peer=NAME,

  # Processes of a container may trace each other.
  ptrace (trace, read, tracedby, readby) peer=NAME,

  deny mount,

  # In /proc a container writes to files of processes and to shared memory's settings only.
  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9/],[^1-9/][^0-9/],[^1-9s/][^0-9y/][^0-9s/],[^1-9/][^0-9/][^0-9/][^0-9/]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/kcore rwklx,

  # In /sys it writes below /sys/fs/cgroup only.
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}
