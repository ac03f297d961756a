package agent

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/listenfd"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// manager acts as systemd for the sockets of an agent. It stores descriptors
// (FileDescriptorStoreMax=), passes them to the service's next process (sd_listen_fds(3)),
// and receives notices of a new main process.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
	done chan struct{}

	mu    sync.Mutex
	store map[string]int // descriptors, by name
	said  []string       // other notices
}

func newManager(t *testing.T, h *host) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(h.dir, "notify"), store: map[string]int{}, done: make(chan struct{})}
	if len(m.path) > 100 {
		m.path = h.socket + ".n" // a short path
	}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	go m.listen()
	t.Cleanup(func() {
		m.conn.Close()
		<-m.done
		m.forget()
	})
	h.manager = m
	return m
}

func (m *manager) listen() {
	defer close(m.done)
	buf := make([]byte, 4096)
	for {
		n, fds, err := listenfd.Receive(m.conn, buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			m.t.Error(err)
			return
		}
		m.hear(string(buf[:n]), fds)
	}
}

func (m *manager) hear(text string, fds []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what := map[string]string{}
	for l := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), "=")
		what[name] = value
	}
	name := what["FDNAME"]
	switch {
	case what["FDSTORE"] == "1" && len(fds) == 1:
		// systemd compares the files; here the inodes do.
		if old, there := m.store[name]; there && inode(fds[0]) == inode(old) {
			break
		}
		m.store[name] = fds[0]
		return
	case what["FDSTOREREMOVE"] == "1":
		if fd, there := m.store[name]; there {
			unix.Close(fd)
			delete(m.store, name)
		}
	default:
		m.said = append(m.said, text)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// inode returns the inode of a socket, which identifies it.
func inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// manage makes a command run as the service's main process. The process sets the pid
// itself.
func (m *manager) manage(cmd *exec.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.store))
	for _, n := range names {
		fd, err := unix.FcntlInt(uintptr(m.store[n]), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			m.t.Fatal(err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), n))
	}
	cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path, fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
}

// forget drops all descriptors, as after a stop of the service.
func (m *manager) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, fd := range m.store {
		unix.Close(fd)
		delete(m.store, n)
	}
}

func (m *manager) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.store))
}

// mainPID returns the last main process that an agent reported, or 0.
func (m *manager) mainPID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range slices.Backward(m.said) {
		if pid, ok := strings.CutPrefix(text, "MAINPID="); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				m.t.Errorf("%q", text)
			}
			return n
		}
	}
	return 0
}

// newManaged starts an agent under a service manager, with sessions a, b and c.
func newManaged(t *testing.T) (*host, *manager) {
	t.Helper()
	h := newHost(t, "")
	m := newManager(t, h)
	h.installReal()
	h.startLogged()
	for _, key := range []string{"a", "b", "c"} {
		h.open(key)
	}
	if got := m.names(); !slices.Equal(got, []string{"api", "gateway", "socket"}) {
		t.Errorf("sockets that the service manager keeps: %v", got)
	}
	return h, m
}

// During `systemctl restart`, and during a restart after a crash, connects wait.
func TestServiceIsRestarted(t *testing.T) {
	labtest.NeedLong(t, "TestServiceIsUpgraded restarts a service by systemd, test/deb TestServicesOfThePackage the package")
	h, _ := newManaged(t)
	before, starts := h.running(), startTimes(t, h, h.running())
	for range 2 {
		check := h.clients()
		h.signal(syscall.SIGUSR2)
		h.wait()
		h.startLogged()
		check()
		h.sameContainers(before, starts)
	}
	// Accepted connections die with a killed agent. A later client waits.
	h.kill()
	check := h.clients()
	h.startLogged()
	check()
	h.sameContainers(before, starts)
	// After a final stop the agent starts again, so that the unix socket does not affect
	// other tests.
	h.signal(syscall.SIGUSR2)
	h.wait()
	h.manager.forget()
	wantError(t, h.cli("session", "ls"), 3, h.socket, "holdfast agent")
	h.startLogged()
	h.sameContainers(before, starts)
}

// TestServiceIsUpgraded: the manager receives the new main process before the old one
// ends, and keeps the sockets.
func TestServiceIsUpgraded(t *testing.T) {
	h, m := newManaged(t)
	check := h.clients()
	for range 2 {
		r, u := h.upgrade()
		if r.code != 0 || m.mainPID() != u.To.PID {
			t.Errorf("the manager's main process is %d: %+v\n%+v", m.mainPID(), r, u)
		}
	}
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// The manager stops the new main process.
	last := m.mainPID()
	if err := syscall.Kill(last, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the agent has ended", func() bool { return !alive(last) })
	h.startLogged()
	check()
}

// TestServiceWhoseMainProcessIsKilledInATrial: the manager then starts an agent, so the
// agent on trial ends.
func TestServiceWhoseMainProcessIsKilledInATrial(t *testing.T) {
	labtest.NeedLong(t, "TestOldAgentKilledInATrial has no systemd")
	h, _ := newManaged(t)
	before, starts := h.running(), startTimes(t, h, h.running())
	kill := h.beginUpgrade("1m")
	poll.Until(t, "the new agent is on trial", func() bool { return h.lastUpgrade().State == "on_trial" })
	kill()
	h.kill()
	poll.Until(t, "the next agent has ended", func() bool { return len(h.agents()) == 0 })
	h.startLogged()
	h.sameContainers(before, starts)
}

// TestServiceWithOtherPorts: sockets that are no longer in the configuration are closed,
// and the manager drops them.
func TestServiceWithOtherPorts(t *testing.T) {
	labtest.NeedLong(t, "TestServiceIsUpgraded upgrades a service")
	h, m := newManaged(t)
	h.signal(syscall.SIGUSR2)
	h.wait()
	old := h.gateway
	h.gateway = labtest.FreePort(t)
	h.configure("")
	h.startLogged()
	h.open("a")
	if c, err := net.Dial("tcp", old); err == nil {
		c.Close()
		t.Errorf("%s still accepts connections", old)
	}
	if got := m.names(); !slices.Equal(got, []string{"api", "gateway", "socket"}) {
		t.Errorf("the manager keeps %v", got)
	}
	h.must("agent", "stop")
	h.wait()
	if got := m.names(); len(got) != 0 {
		t.Errorf("after the agent's end the manager keeps %v", got)
	}
}
