package hosts

import (
	"context"
	"strings"

	"holdfast"
)

// survivesClock sets the clock forward and back.
func survivesClock(h *host) {
	before := h.served("alice")
	for _, step := range []string{"+1 hour", "-2 hours", "+1 hour"} {
		h.run("date -s '" + step + "'; sleep 3")
		h.isSame(before)
	}
	h.run("systemctl is-active holdfast; holdfast session start dora; holdfast session stop dora")
}

// survivesFullDisk fills the disk, and gives the space back.
func survivesFullDisk(h *host) {
	before := h.served("alice")
	defer func() { _, _ = h.Do(context.Background(), "rm -f /var/fill*") }() // the next rows need the space
	h.run(`fallocate -l $(($(stat -f -c '%f*%S' /var)-(64<<20))) /var/fill
dd if=/dev/zero of=/var/fill.2 bs=64K status=none 2>/dev/null || true; df /var; test $(stat -f -c %f /var) -lt 8192`) // ext4 keeps 4096 clusters for itself
	h.isSame(before)
	// A boot may fail on a full disk, but has to end with an error.
	out := h.run("holdfast session start erin 2>&1 && echo started || true")
	if !strings.Contains(out, "started") && !strings.Contains(out, "error: ") {
		h.Errorf("a boot on a full disk ended with %q", out)
	}
	h.Logf("a boot on a full disk: %s", out)
	h.run("rm /var/fill*; systemctl is-active holdfast")
	h.awaited("sessions boot again", "holdfast session start erin")
	h.run("holdfast session stop erin")
	h.isSame(before)
}

// outlivesHang stops all processes of the engine for half a minute.
func outlivesHang(h *host) {
	before := h.served("alice")
	h.run("holdfast session stop frank 2>/dev/null || true; kill -STOP $(systemctl show -P MainPID " + h.unit() + ")")
	h.isSame(before) // needs no engine
	h.run("(sleep 30; kill -CONT $(systemctl show -P MainPID " + h.unit() + ")) </dev/null >/dev/null 2>&1 &")
	if s := h.served("frank"); s.State != holdfast.Ready {
		h.Errorf("the session is %s", s.State)
	}
	h.run("holdfast session stop frank")
	h.isSame(before)
}

// startsAmongMany boots a session beside many stopped containers, and collects them.
// TestManyStoppedContainers of test/agent has 2,000 of them, without a virtual machine.
func startsAmongMany(h *host) {
	h.run(`curl -sSf --unix-socket /var/run/docker.sock -o /dev/null -H 'Content-Type: application/json' -d '{"Image":"holdfast-demo:latest","Cmd":["true"]}' 'http://docker/containers/create?name=many-[1-100]'
systemctl restart holdfast`)
	if s := h.served("grace"); s.State != holdfast.Ready {
		h.Errorf("the session is %s", s.State)
	}
	h.run("holdfast session stop grace")
	h.configure(`sed -i 's/^  min_age: 1h/  min_age: 1s/; s/^  # rules:.*/  rules: [{name: all, kinds: [created], keep_for: 1s}]/' /etc/holdfast/holdfast.yaml`)
	h.run("sleep 2; holdfast gc run")
	if left := h.run("docker ps -aq --filter name=many-"); left != "" {
		h.Errorf("of 100 containers these are left: %s", left)
	}
}

// sleepsInSwap lets a session with a program of 8 MB sleep on a host with swap space.
func sleepsInSwap(h *host) {
	h.run("fallocate -l 256M /swap; chmod 600 /swap; mkswap -q /swap; swapon /swap")
	defer func() { _, _ = h.Do(context.Background(), "swapoff /swap; rm /swap") }() // the row may have done it
	h.configure(template(`name: drowsy, image: "holdfast-demo:latest", sleep: {after: 5s}, ready: {http: /healthz, timeout: 10m}`))
	h.run(`holdfast session start ivan --template drowsy; holdfast session exec ivan -- sh -c '
(all=$(head -c 8000000 /dev/zero | tr "\0" x); while :; do echo ${#all} >/size; sleep 1; done) </dev/null >/dev/null 2>&1 &
until test -e /size; do sleep 1; done'`)
	before := h.served("ivan")
	h.awaited("the session sleeps", "holdfast session show ivan --json | grep '\"since\"'")
	group := "$(find /sys/fs/cgroup -type d -name '*" + string(before.ContainerID) + "*' | head -n 1)"
	h.awaited("its memory is in swap space", "test $(cat "+group+"/memory.swap.current) -gt 8000000")
	h.isSame(before)
	const works = "holdfast session exec ivan -- sh -c 'rm /size; until test -s /size; do sleep 1; done; cat /size'"
	if size := h.run(works); size != "8000000\n" {
		h.Errorf("after the sleep the program prints %q", size)
	}
	h.run("swapoff /swap")
	if size := h.run(works); size != "8000000\n" {
		h.Errorf("without swap space the program prints %q", size)
	}
	h.isSame(before)
	h.run("holdfast session stop ivan")
}

// outlivesOomd makes a container reclaim its memory all the time, beside systemd-oomd.
func outlivesOomd(h *host) {
	before := h.served("alice")
	h.run(`mkdir -p /etc/systemd/oomd.conf.d /etc/systemd/system/system.slice.d
printf '[OOM]\nDefaultMemoryPressureDurationSec=2s\n' >/etc/systemd/oomd.conf.d/test.conf
printf '[Slice]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=2%%\n' >/etc/systemd/system/system.slice.d/test.conf
systemctl daemon-reload; systemctl restart systemd-oomd`)
	h.configure(template(`name: small, image: "holdfast-demo:latest", memory: 48MiB, ready: {http: /healthz, timeout: 10m}`))
	h.run("holdfast session start greedy --template small")
	greedy := h.served("greedy")
	h.run(`holdfast session exec greedy -- sh -c 'dd if=/dev/zero of=/big bs=1M count=200; while :; do cat /big >/dev/null; done' >/dev/null 2>&1 </dev/null || true`)
	h.awaited("the session has ended", "journalctl -b -u systemd-oomd | grep -i killed")
	if after := h.served("greedy"); after.Epoch <= greedy.Epoch {
		h.Errorf("the session was %+v and is %+v", greedy, after)
	}
	h.isSame(before)
	h.run(`holdfast session stop greedy
rm /etc/systemd/system/system.slice.d/test.conf; systemctl daemon-reload; systemctl stop systemd-oomd`)
}
