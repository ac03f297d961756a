package keep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/linux/standby"
)

// processName is the name of a relay's process (proc_pid_comm(5)). Other relays, and drains
// of the old server, recognise it by that.
const processName = "holdfast-relay"

// lookEvery is the interval at which the connections are checked. One check walks the whole
// connection table of the kernel, which takes milliseconds.
const lookEvery = 20 * time.Millisecond

// Main is the main function of the process that Start created. It returns the exit code.
func Main(log *slog.Logger) int {
	term := make(chan os.Signal, 1)
	standby.Detach(child.SocketFD, term)
	defer signal.Stop(term)
	if err := os.WriteFile("/proc/self/comm", []byte(processName), 0); err != nil {
		log.Error("protect: name the process that keeps connections: " + err.Error())
		return 1
	}
	line, err := child.Adopt(child.SocketFD)
	if err != nil {
		log.Error("protect: " + err.Error())
		return 1
	}
	s := &server{line: line, log: log, requests: make(chan request), ended: make(chan struct{})}
	orphans, err := s.run()
	if err != nil {
		log.Error("protect: " + err.Error())
		return 1
	}
	if len(orphans) > 0 {
		newRelay(s.taker.spec.For).run(orphans, term)
	}
	return 0
}

// server is the relay's side of its starter until it relays.
type server struct {
	line     *net.UnixConn
	log      *slog.Logger
	taker    *taker
	refused  []Refused
	requests chan request
	ended    chan struct{}
}

// listen reads until the starter is gone, and then closes requests.
func (s *server) listen() {
	defer close(s.requests)
	buf := make([]byte, maxMessage)
	for {
		n, err := s.line.Read(buf)
		var r request
		if err != nil || n == 0 || json.Unmarshal(buf[:n], &r) != nil {
			return
		}
		select {
		case s.requests <- r:
		case <-s.ended:
			return
		}
	}
}

// run does what the starter asks for until it asks to relay, and returns the connections to
// relay. When the starter is gone before, it undoes everything.
func (s *server) run() ([]*conn, error) {
	go s.listen() // until the line is closed
	defer s.line.Close()
	defer close(s.ended)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case r, ok := <-s.requests:
			if !ok {
				return nil, s.abandon()
			}
			if r.Op == opRelay && s.taker != nil {
				orphans, report := s.taker.finish()
				report.Refused = s.refused
				s.answer(answer{Op: opRelay, Report: report})
				s.taker.close()
				return orphans, nil
			}
			if err := s.handle(r); err != nil {
				return nil, errors.Join(err, s.abandon())
			}
		case <-tick.C:
			if s.taker == nil {
				continue
			}
			if err := s.taker.step(); err != nil {
				s.log.Warn("protect: look at the connections", "err", err)
			}
		}
	}
}

func (s *server) abandon() error {
	if s.taker != nil {
		s.taker.undo(true)
		s.taker.close()
	}
	return nil
}

// handle executes a request.
func (s *server) handle(r request) error {
	a := answer{Op: r.Op}
	err := error(nil)
	switch {
	case r.Op == opWatch && s.taker == nil:
		a, err = s.watch(r.Spec)
	case r.Op == opShut && s.taker != nil:
		err = s.taker.shutGate()
	case r.Op == opSettle && s.taker != nil:
		a.Busy, err = s.settle(r.Limit)
	default:
		return fmt.Errorf("unexpected request %q", r.Op)
	}
	if err != nil {
		a.Error = err.Error()
	}
	s.answer(a)
	return nil
}

// answer ignores a starter that is gone, which listen detects.
func (s *server) answer(a answer) {
	b, err := json.Marshal(a)
	if err == nil {
		_, err = s.line.Write(b)
	}
	if err != nil {
		s.log.Warn("protect: answer the starter", "err", err)
	}
}

// watch recognises what the ports speak, and looks at the connections of those that speak
// HTTP/1.
func (s *server) watch(spec Spec) (answer, error) {
	a := answer{Op: opWatch}
	t := &taker{spec: spec, log: s.log, conns: make(map[uint32]*conn), owners: spec.PIDs, relays: make(map[int]bool), lost: make(map[Reason]int)}
	var err error
	if t.diag, err = sockdiag.Open(); err != nil {
		return a, err
	}
	for _, port := range portsOf(spec.Addresses) {
		why, err := t.refuses(port)
		if err != nil {
			return a, errors.Join(err, t.diag.Close())
		}
		if why == "" {
			t.ports = append(t.ports, port)
		} else {
			s.refused = append(s.refused, Refused{port, why})
		}
	}
	if t.gate, err = bpf.NewGate(requestWords()); err != nil {
		return a, errors.Join(err, t.diag.Close())
	}
	s.taker = t
	a.Ports, a.Report.Refused = t.ports, s.refused
	_, err = t.look()
	return a, err
}

func portsOf(as []Address) (ports []uint16) {
	for _, a := range as {
		if !slices.Contains(ports, a.Port) {
			ports = append(ports, a.Port)
		}
	}
	return ports
}

// refuses returns why the connections of a port cannot be kept; "": they can.
func (t *taker) refuses(port uint16) (string, error) {
	ls, err := t.diag.Listeners(port)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(ls, func(l sockdiag.Listener) bool {
		return slices.ContainsFunc(t.spec.Addresses, func(a Address) bool {
			return a.serves(l.Addr) || a.Port == port && l.Addr.Addr().IsUnspecified()
		})
	})
	if i < 0 {
		return "no server listens", nil
	}
	if why := t.hasSessions(ls[i].Inode); why != "" {
		return why, nil
	}
	at := dialled(ls[i].Addr, ls[i].V6Only)
	speaks, err := recognise(context.Background(), func(ctx context.Context) (net.Conn, error) { return dial(ctx, at) })
	switch {
	case err != nil:
		return "the server was not reached: " + err.Error(), nil
	case speaks == overTLS:
		return "the server speaks TLS, whose keys end with it", nil
	case speaks == other:
		return "the server did not answer in HTTP/1, the only protocol whose connections can be kept", nil
	}
	return "", nil
}

// hasSessions returns why the connections of a server cannot be kept whose process is known to
// keep a session behind each; "": its process is another. It asks the server nothing.
func (t *taker) hasSessions(listener uint32) string {
	found, err := pidfd.FindSockets(t.owners, listener)
	if err != nil {
		return ""
	}
	s, err := proc.Host.Stat(found[listener].Pid)
	if err != nil {
		return "" // it was not found, or has just ended
	}
	check, _ := ready.Of(s.Comm)
	return map[ready.Kind]string{
		ready.Postgres: "PostgreSQL has a session behind each connection, with a login, settings and prepared statements, which ends with the server",
		ready.MySQL:    "MySQL has a session behind each connection, with a login, variables and temporary tables, which ends with the server",
		ready.Redis:    "Redis has state behind each connection, such as WATCH, that a new server does not have, and no answer that announces its end",
	}[check.Kind]
}

// step is done again and again between two requests of the starter.
func (t *taker) step() error {
	if !t.shut.IsZero() {
		t.check()
		if !t.unresolved() {
			return nil
		}
	}
	_, err := t.look()
	return err
}

// settle looks until no connection is busy, or until the limit. It returns how many are
// busy. Error: errStarterGone.
func (s *server) settle(limit time.Duration) (int, error) {
	for end := time.Now().Add(limit); ; {
		s.taker.check()
		busy, err := s.taker.look()
		if err != nil || busy == 0 || time.Now().After(end) {
			return busy, err
		}
		select {
		case <-s.requests: // there is no other one before the answer
			return busy, errStarterGone
		case <-time.After(lookEvery / 2):
		}
	}
}

var errStarterGone = errors.New("the process that asked for it is gone")

func (t *taker) close() { t.gate.Close(); _ = t.diag.Close() }

// isRelay reports whether a process is a relay of the same user.
func isRelay(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := kfile.Read(dir+"/comm", 64)
	if err != nil || strings.TrimSpace(string(b)) != processName {
		return false
	}
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
}

// Relayed returns the inodes of the sockets that relays have. A server's port has them
// too, but they are not the server's.
func Relayed() (map[uint32]bool, error) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil, fmt.Errorf("find the relays: %w", err)
	}
	inodes := make(map[uint32]bool)
	for _, pid := range pids {
		if !isRelay(pid) {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		files, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, f := range files {
			to, err := os.Readlink(dir + f.Name())
			if err != nil {
				continue
			}
			var inode uint32
			if n, _ := fmt.Sscanf(to, "socket:[%d]", &inode); n == 1 {
				inodes[inode] = true
			}
		}
	}
	return inodes, nil
}

// isLocal reports whether an address is one of this network namespace.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	as, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(as, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr() == a
	})
}
