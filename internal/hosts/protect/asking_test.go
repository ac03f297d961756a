package protect_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func check(t *testing.T, text string) ready.Check {
	t.Helper()
	c, err := ready.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// late is a server that listens before it is ready.
type late struct {
	name   string
	server func(t *testing.T, address string) []string
	uid    uint32
	ask    func(address string) error
	check  func(address string) string // of --ready
	kind   ready.Kind                  // recognised by auto; "": none
}

func lates() []late {
	auto := func(string) string { return "auto" }
	health := func(a string) string { return "http://" + a + "/health" }
	return []late{
		{"Redis", redisServer, unprivileged, askRedis, auto, ready.Redis},
		{"PostgreSQL", postgresServer, unprivileged, askPostgres, auto, ready.Postgres},
		{"HTTP", func(_ *testing.T, a string) []string { return stallServer(a, false) }, 0, askHTTP, health, ""},
		{"HTTP over Multipath TCP", func(_ *testing.T, a string) []string { return stallServer(a, true) }, 0, askHTTP, health, ""},
		{"program", func(_ *testing.T, a string) []string { return stallServer(a, false) }, 0, askHTTP,
			func(string) string { return "exec:curl -sf http://{host}:{port}/health" }, ""},
	}
}

// New servers that listen before they are ready are restarted three times under clients, by
// SIGKILL but for PostgreSQL. No client fails. With `--ready tcp`, as before, clients fail: the servers do refuse them.
func TestReady(t *testing.T) {
	needsRoot(t)
	for _, l := range lates() {
		t.Run(l.name, func(t *testing.T) {
			address := protecttest.FreePort(t)
			argv := l.server(t, address)
			pidfile := protecttest.StartFile(t, l.uid, argv...)
			poll.Until(t, "the server is ready", func() bool { return l.ask(address) == nil })
			command := protecttest.Restart(pidfile, l.uid, 20*time.Millisecond, argv...)
			if l.kind == ready.Postgres {
				command = stopPostgres(t, argv, command)
			}
			restart := func(how string, backends ...protect.Name) (failed []error) {
				for _, b := range backends {
					c := startClients(t, 25*time.Millisecond, func() error { return l.ask(address) })
					o := options(t, b, command, address)
					o.Ready, o.Limit = check(t, how), protecttest.Patience/2
					r, err := protect.Run(t.Context(), o)
					if err != nil || r.Released.Reason != protect.NewListens {
						t.Errorf("--ready %s, %s: %+v, %v", how, b, r.Released, err)
					}
					if a := r.Released.Ready; how != "tcp" && (a == nil || !a.Ready || a.Unasked != "" || a.Tries < 2 || a.Last == "") {
						t.Errorf("--ready %s, %s: %+v", how, b, a)
					} else if a != nil {
						t.Logf("%s: %+v", b, *a)
						if l.kind != "" && (a.Asked[0].Kind != l.kind || !a.Asked[0].Recognised) {
							t.Errorf("recognised: %+v", a.Asked)
						}
					}
					poll.Until(t, "the server is ready", func() bool { return l.ask(address) == nil })
					served, errs, longest := c.end()
					t.Logf("--ready %s, %s: %d served, %d failed, longest %v", how, r.Backend, served, len(errs), longest)
					failed = append(failed, errs...)
				}
				return failed
			}
			three := []protect.Name{protect.Park, protect.NFQueue, protect.Auto}
			if strings.Contains(l.name, "Multipath") {
				three = []protect.Name{protect.Auto, protect.NFQueue, protect.Auto}
			}
			if failed := restart(l.check(address), three...); len(failed) > 0 {
				t.Errorf("%d clients failed, such as: %v", len(failed), failed[0])
			}
			if failed := restart("tcp", three[0]); len(failed) == 0 {
				t.Error("no client failed without a question")
			}
		})
	}
}

// pgbench opens a connection for each transaction while PostgreSQL restarts three times, and
// none fails.
func TestReadyPgbench(t *testing.T) {
	labtest.NeedLong(t, "pgbench takes all CPU time for half a minute; TestReady opens the same connections more slowly")
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := postgresServer(t, address)
	bin, data := filepath.Dir(argv[3]), argv[4]
	host, port := hostPort(t, address)
	ctl := func(words ...string) []string {
		return slices.Concat(asUnprivileged(), []string{bin + "/pg_ctl", "-D", data, "-l", data + "/log"}, words)
	}
	isRun(t, ctl("start", "-W")...)
	t.Cleanup(func() { isRun(t, ctl("stop", "-m", "immediate")...) })
	poll.Until(t, "the server is ready", func() bool { return askPostgres(address) == nil })
	isRun(t, bin+"/pgbench", "-h", host, "-p", port, "-U", "postgres", "-i", "-q", "postgres")
	load := exec.Command(bin+"/pgbench", "-h", host, "-p", port, "-U", "postgres", "-C", "-S", "-n", "-c", "4", "-j", "4", "-T", "20", "postgres")
	var out strings.Builder
	load.Stdout, load.Stderr = &out, &out
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	// "smart" lets the clients of the old server end, and new ones wait. A thread of pgbench that
	// waits to connect serves no other client, so each client has its own.
	script := strings.Join(ctl("stop", "-m", "smart"), " ") + " && touch " + data + "/recovery.signal && " + strings.Join(ctl("start", "-W"), " ")
	for range 3 {
		o := options(t, protect.Auto, []string{"sh", "-c", script}, address)
		o.Ready.Kind = ready.Auto
		r, err := protect.Run(t.Context(), o)
		if a := r.Released.Ready; err != nil || r.ExitCode != 0 || a == nil || !a.Ready {
			t.Errorf("%+v, %v", r, err)
		} else {
			t.Logf("%+v, %+v", r.Released.Stats, *a)
		}
	}
	if err := load.Wait(); err != nil || strings.Contains(out.String(), "rror") {
		t.Errorf("pgbench: %v", err)
	}
	t.Log(out.String())
}

// MariaDB is recognised by its process and asked. It listens only when it is nearly ready.
func TestReadyMariaDB(t *testing.T) {
	labtest.NeedLong(t, "a start of MariaDB takes a second of CPU time, and the protocol has its own test")
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := mariaServer(t, address)
	dir := strings.TrimPrefix(argv[2], "--datadir=")
	isRun(t, "mariadb-install-db", "--no-defaults", "--datadir="+dir, "--user=nobody", "--skip-test-db", "--auth-root-authentication-method=normal")
	pidfile := protecttest.StartFile(t, unprivileged, argv...)
	poll.Until(t, "the server is ready", func() bool { return askMaria(address) == nil })
	c := startClients(t, 10*time.Millisecond, func() error { return askMaria(address) })
	for range 3 {
		o := options(t, protect.Auto, protecttest.Restart(pidfile, unprivileged, 20*time.Millisecond, argv...), address)
		o.Ready.Kind = ready.Auto
		r, err := protect.Run(t.Context(), o)
		if a := r.Released.Ready; err != nil || a == nil || !a.Ready || a.Asked[0].Kind != ready.MySQL || !a.Asked[0].Recognised {
			t.Errorf("%+v, %v", r.Released, err)
		}
	}
	served, failed, longest := c.end()
	t.Logf("%d served, longest %v", served, longest)
	for _, err := range failed {
		t.Error("a client:", err)
	}
}

// A server that is never ready is held to the limit, and no longer. The error has its last
// answer.
func TestNeverReady(t *testing.T) {
	needsRoot(t)
	for i, how := range []string{"http://127.0.0.1:1/", "exec:sh -c false", "exec:sleep 60", "redis"} {
		backends := both
		if !labtest.Long() {
			backends = both[i%2 : i%2+1]
		}
		for _, b := range backends {
			t.Run(strings.Fields(how)[0]+"/"+string(b), func(t *testing.T) {
				t.Parallel()
				before := protecttest.Look(t)
				address := protecttest.FreePort(t)
				argv := pythonServer(t, address)
				pidfile := protecttest.StartFile(t, 0, argv...)
				protecttest.AwaitListening(t, address)
				o := options(t, b, protecttest.Restart(pidfile, 0, 0, argv...), address)
				o.Drain = 0
				o.Limit = 6 * time.Second // a busy CPU starts the server late
				o.Ready = check(t, how)
				c := startClients(t, 50*time.Millisecond, func() error { return askHTTP(address) })
				r, err := protect.Run(t.Context(), o)
				if !errors.Is(err, protect.ErrNotReady) || holdfast.HintOf(err) == "" || r.Released.Reason != protect.TimeUp {
					t.Errorf("%+v, %v", r.Released, err)
				}
				if a := r.Released.Ready; a == nil || a.Ready || a.Tries == 0 || a.Last == "" {
					t.Errorf("%+v", a)
				}
				// They were let in to the server that listens.
				if _, failed, _ := c.end(); len(failed) > 0 {
					t.Error("a client:", failed[0])
				}
				if err := protecttest.KillFile(pidfile); err != nil {
					t.Fatal(err)
				}
				protecttest.NothingLeft(t, before)
			})
		}
	}
}

// A server of an unknown name, or one that does not answer as its name says, is not asked
// unless that was requested. A known one that keeps its sockets is asked.
func TestRecognised(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address, "plain")...)
	protecttest.AwaitListening(t, address)
	o := options(t, protect.Auto, []string{"true"}, address)
	o.Ready.Kind = ready.Auto
	if r, err := protect.Run(t.Context(), o); err != nil || r.Released.Ready != nil {
		t.Errorf("an unknown server: %+v, %v", r.Released, err)
	}
	pretender := filepath.Join(t.TempDir(), "redis-server")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, pretender); err != nil {
		t.Fatal(err)
	}
	other := protecttest.FreePort(t)
	protecttest.Start(t, 0, append([]string{pretender}, protecttest.GoServer(other, "plain")[1:]...)...)
	protecttest.AwaitListening(t, other)
	o.Addresses = protecttest.Addresses(t, other)
	if r, err := protect.Run(t.Context(), o); err != nil || r.Released.Ready != nil {
		t.Errorf("a false Redis: %+v, %v", r.Released, err)
	}
	o.Ready.Kind = ready.Redis
	o.Limit = time.Second
	if _, err := protect.Run(t.Context(), o); !errors.Is(err, protect.ErrNotReady) {
		t.Errorf("a false Redis that is to be asked: %v", err)
	}
}

// A check by a program that does not exist fails before anything is held.
func TestNoSuchProgram(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	o := options(t, protect.Auto, []string{"true"}, address)
	o.Ready = check(t, "exec:/no/such/program")
	var no *protect.CommandError
	if r, err := protect.Run(t.Context(), o); !errors.As(err, &no) || r.Backend != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A protect that is killed while it runs a program ends the program, and releases all
// connections.
func TestProgramEndsWithProtect(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address, "plain")...)
	protecttest.AwaitListening(t, address)
	note := filepath.Join(t.TempDir(), "pid")
	script := filepath.Join(t.TempDir(), "check")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho $$ >\""+note+"\"\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(order{Addresses: []string{address}, LockDir: t.TempDir(), Command: []string{"true"}, Ready: "exec:" + script})
	if err != nil {
		t.Fatal(err)
	}
	s := protecttest.Start(t, 0, "/proc/self/exe", roleProtect, string(b))
	pid := 0
	poll.Until(t, "the program runs", func() bool {
		text, _ := os.ReadFile(note) // it is not there yet
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	if err := unix.Kill(s.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the program has ended", func() bool {
		st, err := proc.Host.Stat(pid)
		return err != nil || st.State == 'Z'
	})
	if err := askHTTP(address); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}
