package install_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/install"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/netns"
	"holdfast/test/poll"
)

// both has the two backends that hold on most kernels.
var both = []protect.Name{protect.Park, protect.NFQueue}

func add(t *testing.T, o install.Options, is ...protect.Installed) install.State {
	t.Helper()
	s, err := install.Add(t.Context(), o, is)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func status(t *testing.T, o install.Options) install.State {
	t.Helper()
	s, err := install.Status(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The standing keeper holds for installed ports several times. No client fails, and the
// status counts the holds. Between holds, no packet meets any state of the keeper in the
// kernel.
func TestInstalled(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			before := protecttest.Look(t)
			o := at(t)
			address := protecttest.FreePort(t)
			argv, pidfile := serve(t, address)
			s := add(t, o, ports(t, b, address)...)
			if s.Keeper == nil || len(s.Ports) != 1 || !s.Ports[0].Standing || !s.Ports[0].Recorded || s.Ports[0].Works != b || !s.Ports[0].Listening {
				t.Fatalf("installed: %+v", s)
			}
			protecttest.NothingLeft(t, before)
			load := protecttest.StartLoad(t, address, 10*time.Millisecond, nil)
			const times = 5
			for range times {
				r, err := protect.Run(t.Context(), options(t, o, protect.Auto, protecttest.Restart(pidfile, 0, 50*time.Millisecond, argv...), address))
				if err != nil || !r.Installed || r.Backend != b || r.Released.Reason != protect.NewListens {
					t.Errorf("report: %+v, %v", r, err)
				}
			}
			poll.Until(t, "clients came", func() bool { return load.Total() >= 20 })
			if _, failed, _ := load.Stop(); len(failed) > 0 {
				t.Errorf("clients failed: %v", failed)
			}
			protecttest.NothingLeft(t, before)
			if ls := protecttest.Listening(t, protecttest.Addresses(t, address)[0].Port); len(ls) != 1 {
				t.Errorf("listeners: %v", ls)
			}
			p := status(t, o).Ports[0]
			if p.Holds != times || p.Connections == 0 || p.Longest <= 0 || p.Last != b || p.Now != nil {
				t.Errorf("status: %+v", p)
			}
		})
	}
}

// To install a port twice changes nothing, another backend replaces the first, and a
// removed port is no longer installed.
func TestAgain(t *testing.T) {
	needsRoot(t)
	o := at(t)
	a, b := protecttest.FreePort(t), protecttest.FreePort(t)
	one := ports(t, protect.Auto, a)[0]
	first := add(t, o, one)
	add(t, o, one)
	second := add(t, o, ports(t, protect.NFQueue, a, b)...)
	if second.Keeper.Pid != first.Keeper.Pid || len(second.Ports) != 2 || second.Ports[0].Backend != protect.NFQueue || second.Ports[0].Listening {
		t.Errorf("first %+v, second %+v", first, second)
	}
	s, err := install.Remove(t.Context(), o, protecttest.Addresses(t, b, protecttest.FreePort(t)))
	if err != nil || len(s.Ports) != 1 || s.Ports[0].Address != one.Address || s.Keeper == nil {
		t.Errorf("without the second: %+v, %v", s, err)
	}
	for range 2 {
		s, err := install.Remove(t.Context(), o, nil)
		if err != nil || len(s.Ports) != 0 || s.Keeper != nil {
			t.Errorf("without any: %+v, %v", s, err)
		}
		nothingInstalled(t, o)
	}
}

// After a boot, Restore starts the keeper from the record. Without a record it starts
// none.
func TestRestore(t *testing.T) {
	needsRoot(t)
	o := at(t)
	if s, err := install.Restore(t.Context(), o); err != nil || s.Keeper != nil {
		t.Errorf("of nothing: %+v, %v", s, err)
	}
	address := protecttest.FreePort(t)
	s := add(t, o, ports(t, protect.Park, address)...)
	kill(t, s.Keeper.Pid)
	if s := status(t, o); s.Keeper != nil || len(s.Ports) != 1 || s.Ports[0].Standing || !s.Ports[0].Recorded {
		t.Errorf("after a boot: %+v", s)
	}
	back, err := install.Restore(t.Context(), o)
	if err != nil || back.Keeper == nil || len(back.Ports) != 1 || !back.Ports[0].Standing || back.Ports[0].Backend != protect.Park {
		t.Errorf("restored: %+v, %v", back, err)
	}
	if again, err := install.Restore(t.Context(), o); err != nil || again.Keeper.Pid != back.Keeper.Pid {
		t.Errorf("restored twice: %+v, %v", again, err)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the keeper is gone", func() bool {
		b, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
		return err != nil || len(b) == 0
	})
}

// A keeper that runs another program is replaced.
func TestUpgrade(t *testing.T) {
	needsRoot(t)
	o := at(t)
	old := o
	program := filepath.Join(t.TempDir(), "older")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, b, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	old.Keeper = []string{program, roleKeeper}
	one := ports(t, protect.Auto, protecttest.FreePort(t))
	was := add(t, old, one...)
	if !status(t, o).Keeper.Outdated {
		t.Error("the status does not show that the keeper is outdated")
	}
	s, err := install.Restore(t.Context(), o)
	if err != nil || s.Keeper.Pid == was.Keeper.Pid || s.Keeper.Outdated || len(s.Ports) != 1 {
		t.Errorf("restored: %+v, %v", s, err)
	}
}

// Without a record, ports are installed until the next boot.
func TestNoRecord(t *testing.T) {
	needsRoot(t)
	o := at(t)
	o.Record = ""
	a, b := ports(t, protect.Auto, protecttest.FreePort(t)), ports(t, protect.Auto, protecttest.FreePort(t))
	add(t, o, a...)
	s := add(t, o, b...)
	if len(s.Ports) != 2 || s.Ports[0].Recorded || !s.Ports[1].Standing {
		t.Errorf("installed: %+v", s)
	}
	if _, err := install.Remove(t.Context(), o, nil); err != nil {
		t.Error(err)
	}
}

func TestBadInput(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	o := at(t)
	address := protecttest.FreePort(t)
	serve(t, address) // which does not ask for SO_REUSEPORT
	var refused *install.RefusedError
	_, err := install.Add(t.Context(), o, ports(t, protect.Migrate, address))
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "SO_REUSEPORT") || holdfast.HintOf(err) == "" {
		t.Errorf("a backend that does not work: %v", err)
	}
	var many []protect.Installed
	for i := range protect.MaxInstalled + 1 {
		many = append(many, protect.Installed{Address: protect.Address{Port: uint16(40000 + i)}, Backend: protect.Auto})
	}
	if _, err := install.Add(t.Context(), o, many); err == nil {
		t.Error("too many are installed")
	}
	nothingInstalled(t, o)
	if err := os.MkdirAll(filepath.Dir(o.Record), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"version":2}`, `{"version":1,"ports":[{"port":80,"backend":"magic"}]}`, strings.Repeat(" ", 1<<17)} {
		if err := os.WriteFile(o.Record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func() (install.State, error){
			"add":     func() (install.State, error) { return install.Add(t.Context(), o, ports(t, protect.Auto, address)) },
			"restore": func() (install.State, error) { return install.Restore(t.Context(), o) },
			"status":  func() (install.State, error) { return install.Status(t.Context(), o) },
		} {
			if _, err := do(); err == nil || holdfast.HintOf(err) == "" {
				t.Errorf("%s with a record of %.20q: %v", name, text, err)
			}
		}
		if _, err := install.Remove(t.Context(), o, nil); err != nil {
			t.Errorf("remove all, with a bad record: %v", err)
		}
	}
	protecttest.NothingLeft(t, before)
}

// One keeper holds two ports at once. When it has to end, it waits for both holds, and
// begins no other.
func TestTwoHoldsAtOnce(t *testing.T) {
	needsRoot(t)
	o := at(t)
	a, b := protecttest.FreePort(t), protecttest.FreePort(t)
	serve(t, a)
	serve(t, b)
	add(t, o, ports(t, protect.Auto, a, b)...)
	dir := t.TempDir()
	release := filepath.Join(dir, "release")
	wait := []string{"sh", "-c", `until test -e "$0"; do sleep 0.05; done`, release}
	type end struct {
		protect.Report
		err error
	}
	ends, started := make(chan end, 2), make(chan struct{}, 2)
	for _, address := range []string{a, b} {
		p := options(t, o, protect.Auto, wait, address)
		p.Observe = func(step string) {
			if step == "start" {
				started <- struct{}{}
			}
		}
		go func() {
			r, err := protect.Run(context.WithoutCancel(t.Context()), p)
			ends <- end{r, err}
		}()
	}
	<-started
	<-started
	for _, p := range status(t, o).Ports {
		if p.Now == nil || p.Now.Pid != os.Getpid() || !strings.Contains(p.Now.Command, os.Args[0]) || p.Now.Since.IsZero() {
			t.Errorf("status of a port that is held: %+v", p.Now)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := install.Remove(soon, o, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the keeper ends under a hold: %v", err)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if e := <-ends; e.err != nil || !e.Installed || e.Released.Reason != protect.OldStayed {
			t.Errorf("report: %+v, %v", e.Report, e.err)
		}
	}
	poll.Until(t, "the keeper is gone", func() bool { return len(running(t, "standing", o.LockDir)) == 0 })
}

// After many holds, a keeper has no more open files than after the first ones.
func TestKeeperDoesNotGrow(t *testing.T) {
	needsRoot(t)
	o := at(t)
	address := protecttest.FreePort(t)
	serve(t, address)
	pid := add(t, o, ports(t, protect.Auto, address)...).Keeper.Pid
	files := func() int {
		all, err := os.ReadDir("/proc/" + itoa(pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	hold := func() {
		for _, b := range both {
			if r, err := protect.Run(t.Context(), options(t, o, b, []string{"true"}, address)); err != nil || !r.Installed {
				t.Errorf("report: %+v, %v", r, err)
			}
		}
	}
	hold() // what it opens once it keeps
	before := files()
	const times = 10
	for range times {
		hold()
	}
	poll.Until(t, "it has closed what it opened", func() bool { return files() <= before })
}

// A protect starts its own keeper if the standing keeper is stopped, is of another
// version, or is not prepared for all of the ports.
func TestOtherwiseAlone(t *testing.T) {
	needsRoot(t)
	o := at(t)
	o.Log = quietest()
	a, b := protecttest.FreePort(t), protecttest.FreePort(t)
	serve(t, a)
	serve(t, b)
	alone := func(t *testing.T, o install.Options, addresses ...string) {
		t.Helper()
		r, err := protect.Run(t.Context(), options(t, o, protect.Auto, []string{"true"}, addresses...))
		if err != nil || r.Installed || r.Backend == "" {
			t.Errorf("report: %+v, %v", r, err)
		}
	}
	pid := add(t, o, ports(t, protect.Auto, a)...).Keeper.Pid
	alone(t, o, a, b)
	alone(t, o, b)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	alone(t, o, a)
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	other := o
	other.LockDir = t.TempDir()
	foreign(t, other.LockDir)
	alone(t, other, a)
}

// foreign is a keeper of another version, as its answer to hello says.
func foreign(t *testing.T, dir string) {
	t.Helper()
	id, err := netns.ID(netns.OfProcess(0))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unixpacket", filepath.Join(dir, id+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := c.Read(make([]byte, 1000)); err == nil || errors.Is(err, io.EOF) {
				b, _ := json.Marshal(map[string]any{"op": "hello", "hello": map[string]any{"protocol": 99}})
				_, _ = c.Write(b) // the client may have gone
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}
