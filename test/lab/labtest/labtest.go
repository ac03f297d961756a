// Package labtest gives a package's tests a private Docker engine.
//
//	func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		engine := labtest.Engine(t) // one for the package, started by the first
//		engine.Host()
//	}
//
// The whole test binary runs in the lab, as root. Without root, only -short skips the
// tests that need an engine.
package labtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
)

// Images that the shared engine has. Their containers run until killed.
const (
	Busybox    = "busybox:latest"    // command: sleep inf
	TestServer = "testserver:latest" // test/lab/testserver, listening on :8080
)

var long = flag.Bool("long", false, "all cases of the tests of which make test has a part")

// Long reports whether the test program has the flag -long, which runs all cases of tests
// that make test runs in part.
func Long() bool { return *long }

// NeedLong skips the test without the flag -long. why says what the test costs, or which test of
// make test covers a part of it.
func NeedLong(t testing.TB, why string) {
	t.Helper()
	if !*long {
		t.Skip("-long: " + why)
	}
}

// Count returns all with the flag -long, otherwise some.
func Count(some, all int) int {
	if *long {
		return all
	}
	return some
}

var dockerdDir = flag.String("dockerd", "", "directory with the programs of another Docker engine than the installed one: dockerd, docker-proxy, containerd, containerd-shim-runc-v2, and runc if it needs another")

// Options returns o with the programs that the flag -dockerd names.
func Options(o lab.Options) lab.Options {
	if *dockerdDir == "" || o.Dockerd != "" {
		return o
	}
	return o.With(*dockerdDir)
}

// server is the static test server. The first engine that needs it builds it.
var server struct {
	sync.Mutex
	dir string // "" until then
}

// shared is the package's engine. A test binary has one.
var shared struct {
	sync.Mutex
	onDisk bool
	engine *lab.Engine
	err    error
}

// Main runs a package's tests in a lab and returns the exit code. It stops the shared engine
// and checks that no goroutine is left; options are those of goleak.
func Main(m *testing.M, options ...goleak.Option) int {
	flag.Parse()
	if !lab.Inside() {
		if testing.Short() {
			return m.Run()
		}
		code, err := lab.Reenter()
		if err != nil {
			return complain(err)
		}
		return code
	}
	if err := hideIPv6(); err != nil {
		return complain(err)
	}
	code := m.Run()
	if err := errors.Join(stopShared(), stopContainerd(), os.RemoveAll(server.dir)); err != nil && code == 0 {
		code = complain(err)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			code = complain(err)
		}
	}
	return code
}

// MainOnDisk is Main for a package whose tests need disks: the data of the shared engine is on one.
func MainOnDisk(m *testing.M, options ...goleak.Option) int {
	shared.onDisk = true
	return Main(m, options...)
}

// hideIPv6 hides the settings of IPv6 from the programs of the lab. Docker then leaves them as they
// are. Otherwise it disables IPv6 in each new network namespace, by a program of its own for each
// container. While another namespace begins or ends, that write does not wait but repeats the system
// call (addrconf_disable_ipv6 of net/ipv6/addrconf.c: rtnl_trylock, restart_syscall). On busy CPUs
// this took a quarter of all CPU time.
func hideIPv6() error {
	const dir = "/proc/sys/net/ipv6"
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("hide %s: %w", dir, err)
	}
	return nil
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "error:", err)
	if hint := holdfast.HintOf(err); hint != "" {
		fmt.Fprintln(os.Stderr, "hint:", hint)
	}
	return 1
}

// Engine returns the package's shared engine, with live restore and the images Busybox and
// TestServer. Its data is in memory on a host with 8 GiB, unless MainOnDisk was called. The
// test removes the containers it makes.
func Engine(t testing.TB) *lab.Engine {
	t.Helper()
	needLab(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.engine == nil && shared.err == nil {
		shared.engine, shared.err = startShared()
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.engine
}

// Docker returns a client of the package's shared engine, for one test.
func Docker(t testing.TB) *docker.Engine {
	t.Helper()
	e, err := docker.Open(t.Context(), docker.Config{Host: Engine(t).Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// Private starts an engine for one test, with the image TestServer, and stops it
// at the test's end.
func Private(t testing.TB, o lab.Options) *lab.Engine {
	t.Helper()
	needLab(t)
	e, err := lab.StartEngine(t.Context(), Options(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := ImportServer(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return e
}

// needLab skips the test with -short. It fails if TestMain does not call Main.
func needLab(t testing.TB) {
	t.Helper()
	if lab.Inside() {
		return
	}
	if testing.Short() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	t.Fatal("TestMain does not call labtest.Main")
}

func startShared() (*lab.Engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := memoryDir()
	engine, err := lab.StartEngine(ctx, Options(lab.Options{LiveRestore: true, Dir: dir, InMemory: dir != ""}))
	if err != nil {
		return nil, err
	}
	if err := importImages(ctx, engine); err != nil {
		return nil, errors.Join(err, engine.Stop())
	}
	return engine, nil
}

// memoryDir returns a directory in the lab's memory for the data of the package's engine, where
// containers start and end with less work for the CPUs, or "", which is a disk, on a host with little
// memory or with MainOnDisk.
func memoryDir() string {
	const enough = 8 << 30
	var host unix.Sysinfo_t
	if shared.onDisk {
		return ""
	}
	if err := unix.Sysinfo(&host); err != nil || uint64(host.Totalram)*uint64(host.Unit) < enough {
		return ""
	}
	return "/run" // the lab's own
}

func importImages(ctx context.Context, engine *lab.Engine) error {
	busybox, err := lab.Busybox()
	if err != nil {
		return err
	}
	if err := engine.Import(ctx, busybox); err != nil {
		return err
	}
	return ImportServer(ctx, engine)
}

// ImportServer puts the image TestServer into an engine.
func ImportServer(ctx context.Context, engine *lab.Engine) error {
	path, err := builtServer(ctx)
	if err != nil {
		return err
	}
	image, err := lab.Binary(TestServer, path)
	if err != nil {
		return err
	}
	return engine.Import(ctx, image)
}

// builtServer returns the path of the test server. Main removes the file.
func builtServer(ctx context.Context) (string, error) {
	server.Lock()
	defer server.Unlock()
	const name = "testserver"
	if server.dir != "" {
		return filepath.Join(server.dir, name), nil
	}
	dir, err := os.MkdirTemp("", "testserver-")
	if err != nil {
		return "", err
	}
	if err := BuildTestServer(ctx, filepath.Join(dir, name)); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	server.dir = dir
	return filepath.Join(dir, name), nil
}

// BuildTestServer builds the static test server to the file path.
func BuildTestServer(ctx context.Context, path string) error {
	return Build(ctx, "holdfast/test/lab/testserver", path)
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.engine == nil {
		return nil
	}
	return shared.engine.Stop()
}
