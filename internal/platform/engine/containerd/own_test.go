package containerd_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// started makes and starts a container that is removed at the test's end.
func started(t *testing.T, e *containerd.Engine, s engine.Spec) engine.Container {
	t.Helper()
	return startedBy(t, e, e, s)
}

// startedBy is like started, for an Engine that is closed before the test's end.
func startedBy(t *testing.T, e, remover *containerd.Engine, s engine.Spec) engine.Container {
	t.Helper()
	id, err := e.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remover.Remove(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c, err := e.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func logOf(t *testing.T, e *containerd.Engine, id string, o engine.LogOptions) string {
	t.Helper()
	var out bytes.Buffer
	if err := e.Logs(t.Context(), id, o, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func sh(script string) engine.Spec {
	return engine.Spec{Image: labtest.Busybox, Command: []string{"sh", "-c", script}}
}

// TestOwn has the tests of this engine's own features, on one daemon.
func TestOwn(t *testing.T) {
	e, daemon := labtest.Containerd(t)
	for name, test := range map[string]func(*testing.T, *containerd.Engine, *lab.Containerd){
		"Neighbours": neighbours, "LogRotates": logRotates, "LogIsTakenUp": logIsTakenUp, "Reap": reap, "Inventory": inventory,
		"Isolation": isolation, "Unsupported": unsupported, "AddressIsKept": addressIsKept, "Figures": figures, "RemovedBehindAKill": removedBehindAKill,
		"Runtimes": runtimes, "ExecOverCrash": execOverCrash,
	} {
		t.Run(name, func(t *testing.T) { test(t, e, daemon) })
	}
}

// execOverCrash: a command keeps its streams and its exit code while containerd is down.
func execOverCrash(t *testing.T, e *containerd.Engine, daemon *lab.Containerd) {
	c := started(t, e, engine.Spec{Image: labtest.Busybox})
	in, typing := io.Pipe()
	defer typing.Close()
	out, shown := io.Pipe()
	lines := bufio.NewReader(out)
	var code int
	var err error
	done, began := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		code, err = e.Exec(t.Context(), c.ID, engine.Exec{
			Command: []string{"sh", "-c", "for i in 1 2 3; do read word; echo $word; done; exit 4"}, Stdin: in, Stdout: shown,
			Started: func(engine.Signaler) { close(began) },
		})
		shown.Close()
	}()
	echo := func(word string) {
		t.Helper()
		fmt.Fprintln(typing, word)
		if got, err := lines.ReadString('\n'); got != word+"\n" {
			t.Fatalf("%q, %v", got, err) // nothing reads the next word
		}
	}
	echo("before")
	<-began // the command may answer before containerd has
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	echo("without containerd")
	if err := daemon.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	echo("after")
	<-done
	if code != 4 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// neighbours: another namespace of the same daemon, like Docker's (moby) and
// Kubernetes' (k8s.io), is neither listed nor changed.
func neighbours(t *testing.T, e *containerd.Engine, daemon *lab.Containerd) {
	api, err := client.New(daemon.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	for _, ns := range []string{"moby", "k8s.io"} {
		ctx := namespaces.WithNamespace(t.Context(), ns)
		busybox, err := lab.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		archive, err := busybox.Archive()
		if err != nil {
			t.Fatal(err)
		}
		images, err := api.Import(ctx, archive)
		if err != nil {
			t.Fatal(err)
		}
		image := client.NewImage(api, images[0])
		if err := image.Unpack(ctx, "overlayfs"); err != nil {
			t.Fatal(err)
		}
		theirs, err := api.NewContainer(ctx, "theirs", client.WithNewSnapshot("theirs", image),
			client.WithNewSpec(oci.WithImageConfig(image), oci.WithCgroup(daemon.CgroupParent()+"/"+ns)))
		if err != nil {
			t.Fatal(err)
		}
		task, err := theirs.NewTask(ctx, cio.NullIO)
		if err != nil {
			t.Fatal(err)
		}
		if err := task.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	mine := started(t, e, engine.Spec{Name: "theirs", Image: labtest.Busybox}) // the name is free here
	list, err := e.List(t.Context(), nil)
	if err != nil || len(list) != 1 || list[0].ID != mine.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := e.Holders(t.Context()); err != nil {
		t.Error(err)
	}
	// An agent with another engine.namespace has the same directory.
	conf := labtest.ContainerdConfig(daemon)
	conf.Namespace = "other"
	other, err := containerd.Open(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	dir := filepath.Join(conf.Dir, "containers", mine.ID)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	if err := other.Reap(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if again, err := e.Inspect(t.Context(), mine.ID); err != nil || !slices.Equal(again.Addresses, mine.Addresses) {
		t.Errorf("%+v, %v", again, err)
	}
	if err := e.Reap(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.Remove(t.Context(), mine.ID); err != nil {
		t.Error(err)
	}
	if err := e.Remove(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	for _, ns := range []string{"moby", "k8s.io"} {
		ctx := namespaces.WithNamespace(t.Context(), ns)
		theirs, err := api.LoadContainer(ctx, "theirs")
		if err != nil {
			t.Fatalf("%s: %v", ns, err)
		}
		task, err := theirs.Task(ctx, nil)
		if err != nil {
			t.Fatalf("%s: %v", ns, err)
		}
		if status, err := task.Status(ctx); err != nil || status.Status != client.Running {
			t.Errorf("%s: %+v, %v", ns, status, err)
		}
		if images, err := api.ListImages(ctx); err != nil || len(images) != 1 {
			t.Errorf("%s: %v, %v", ns, images, err)
		}
	}
}

// logRotates: the log keeps the last lines of a container that prints much, complete
// and in order.
func logRotates(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	c := started(t, e, sh(`yes "$(printf %01000d 0)" | head -n 30000 | cat -n; echo the end`))
	if _, err := e.Wait(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(logOf(t, e, c.ID, engine.LogOptions{Tail: -1})), "\n")
	if lines[len(lines)-1] != "the end" || len(lines) < 8<<10 || len(lines) > 17<<10 {
		t.Fatalf("%d lines, the last is %.20q", len(lines), lines[len(lines)-1])
	}
	for i, line := range lines[:len(lines)-1] {
		want := 30000 - len(lines) + 2 + i
		if number, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); number != fmt.Sprint(want) {
			t.Fatalf("line %d is number %s, not %d", i, number, want)
		}
	}
	if got := logOf(t, e, c.ID, engine.LogOptions{Tail: 1}); got != "the end\n" {
		t.Errorf("the last line is %.30q", got)
	}
}

// logIsTakenUp: output that a container writes while no process reads it is read by
// the next one.
func logIsTakenUp(t *testing.T, e *containerd.Engine, daemon *lab.Containerd) {
	first, err := containerd.Open(t.Context(), labtest.ContainerdConfig(daemon))
	if err != nil {
		t.Fatal(err)
	}
	c := startedBy(t, first, e, sh(`echo one; while [ ! -e /go ]; do sleep 0.01; done; echo two; while [ ! -e /end ]; do sleep 0.01; done; echo three`))
	poll.Until(t, "the first line is read", func() bool { return logOf(t, first, c.ID, engine.LogOptions{Tail: -1}) == "one\n" })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	touch := func(file string) {
		t.Helper()
		if code, err := e.Exec(t.Context(), c.ID, engine.Exec{Command: []string{"touch", file}}); err != nil || code != 0 {
			t.Fatal(code, err)
		}
	}
	touch("/go")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	poll.Until(t, "the second line is read", func() bool { return strings.HasSuffix(logOf(t, e, c.ID, engine.LogOptions{Tail: -1}), "two\n") })
	touch("/end")
	if _, err := e.Wait(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := logOf(t, e, c.ID, engine.LogOptions{Tail: -1}); got != "one\ntwo\nthree\n" {
		t.Errorf("the log is %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// reap: the resources of a container that another tool has removed are freed, and no
// others.
func reap(t *testing.T, e *containerd.Engine, daemon *lab.Containerd) {
	api, err := client.New(daemon.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	stays := started(t, e, engine.Spec{Image: labtest.Busybox})
	gone := started(t, e, engine.Spec{Image: labtest.Busybox})
	if err := e.Kill(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), containerd.DefaultNamespace)
	theirs, err := api.LoadContainer(ctx, gone.ID)
	if err != nil {
		t.Fatal(err)
	}
	task, err := theirs.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := task.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	dir := labtest.ContainerdConfig(daemon).Dir
	book := func() []string {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(dir, "addresses"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names
	}
	if got := book(); len(got) != 2 || !slices.Contains(got, gone.Addresses[0]) {
		t.Fatalf("before: %v", got)
	}
	old := time.Now().Add(-time.Hour)
	for _, c := range []engine.Container{stays, gone} {
		if err := os.Chtimes(filepath.Join(dir, "containers", c.ID), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := book(); !slices.Equal(got, stays.Addresses) {
		t.Errorf("after: %v, wanted %v", got, stays.Addresses)
	}
	if _, err := os.Stat(filepath.Join(dir, "containers", gone.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files of removed containers: %v", err)
	}
	if now, err := e.Inspect(t.Context(), stays.ID); err != nil || !now.Running() {
		t.Errorf("the other: %+v, %v", now, err)
	}
}

// inventory tests the calls of the garbage collector.
func inventory(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	archive, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	archive.Ref = "collect.me/image:1"
	archive.Env = append(archive.Env, "ANOTHER=image")
	tar, err := archive.Archive()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Load(t.Context(), tar); err != nil {
		t.Fatal(err)
	}
	const ref = "collect.me/image:1"
	images, err := e.Images(t.Context())
	i := slices.IndexFunc(images, func(i engine.Image) bool { return slices.Contains(i.Refs, ref) })
	if err != nil || i < 0 || images[i].Size < 100_000 {
		t.Fatalf("%+v, %v", images, err)
	}
	one, layers, err := e.InspectImage(t.Context(), images[i].ID)
	if err != nil || one.ID != images[i].ID || !slices.Equal(one.Refs, []string{ref}) || len(layers) != 1 {
		t.Errorf("%+v, %v, %v", one, layers, err)
	}
	c := started(t, e, engine.Spec{Image: ref, Mounts: []engine.Mount{{Type: "volume", Source: "kept", Target: "/kept"}}})
	holders, err := e.Holders(t.Context())
	if err != nil || len(holders) != 1 || holders[0].ImageID != one.ID || holders[0].State != "running" || !slices.Equal(holders[0].Volumes, []string{"kept"}) {
		t.Errorf("%+v, %v", holders, err)
	}
	if err := e.RemoveImage(t.Context(), ref); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("an image in use: %v", err)
	}
	if err := e.RemoveVolume(t.Context(), "kept"); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a volume in use: %v", err)
	}
	if err := e.RemoveStopped(t.Context(), c.ID); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a container that runs: %v", err)
	}
	if err := e.Kill(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	for _, remove := range []func() error{
		func() error { return e.RemoveStopped(t.Context(), c.ID) },
		func() error { return e.RemoveImage(t.Context(), ref) },
		func() error { return e.RemoveVolume(t.Context(), "kept") },
	} {
		if err := remove(); err != nil {
			t.Error(err)
		}
		if err := remove(); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("a removed object: %v", err)
		}
	}
	if _, _, err := e.InspectImage(t.Context(), one.ID); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("the removed image: %v", err)
	}
}

// isolation: host and container reach each other. Two containers do not, and see none
// of each other's processes, files and sockets.
func isolation(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	a := started(t, e, sh(`touch /secret; nc -l -p 7000 -e echo hello`))
	b := started(t, e, sh(`sleep inf`))
	run := func(c engine.Container, script string) (string, int) {
		t.Helper()
		var out bytes.Buffer
		code, err := e.Exec(t.Context(), c.ID, engine.Exec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), code
	}
	gateway := netip.MustParsePrefix(containerd.DefaultSubnet).Addr().Next().String()
	for script, want := range map[string]bool{
		"ping -c 1 -W 5 " + gateway:                 true,
		"ping -c 1 -W 1 " + a.Addresses[0]:          false,
		"ls /secret":                                false,
		"ps | grep -v grep | grep 'nc -l'":          false,
		"netstat -ltn | grep 7000":                  false,
		"ping -c 1 -W 5 " + b.Addresses[0]:          true,
		"grep -w " + b.Addresses[0] + " /etc/hosts": true,
	} {
		if out, code := run(b, script); (code == 0) != want {
			t.Errorf("%s: exit code %d\n%s", script, code, out)
		}
	}
}

// unsupported: features that only Docker has return ErrUnsupported.
func unsupported(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	if _, err := e.CreateNetwork(t.Context(), "mine", nil); !errors.Is(err, engine.ErrUnsupported) || holdfast.HintOf(err) == "" {
		t.Errorf("a network: %v", err)
	}
	for _, s := range []engine.Spec{{Network: "mine"}, {Aliases: []string{"db"}}} {
		s.Image = labtest.Busybox
		if _, err := e.Create(t.Context(), s); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// removedBehindAKill: Remove works right after a direct kill, as in a drain, before
// the shim or the engine has seen the end.
func removedBehindAKill(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	for range 10 {
		var all sync.WaitGroup
		for range 4 {
			c := started(t, e, engine.Spec{Image: labtest.Busybox})
			all.Go(func() {
				if err := unix.Kill(c.Pid, unix.SIGKILL); err != nil {
					t.Error(err)
				}
				if err := e.Remove(t.Context(), c.ID); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// addressIsKept: a container that is started again keeps its address.
func addressIsKept(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	c := started(t, e, engine.Spec{Image: labtest.Busybox})
	for range 3 {
		if err := e.Kill(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if now, err := e.Inspect(t.Context(), c.ID); err != nil || !slices.Equal(now.Addresses, c.Addresses) || now.Pid == c.Pid {
			t.Errorf("%+v, %v", now, err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for host, word := range map[string]error{"unix:///no/such/containerd.sock": holdfast.ErrEngine, "tcp://127.0.0.1:1": nil, "/run/x.sock": nil} {
		_, err := containerd.Open(t.Context(), containerd.Config{Host: host, Dir: t.TempDir()})
		if err == nil || (word == nil) == errors.Is(err, holdfast.ErrEngine) || holdfast.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", host, err, holdfast.HintOf(err))
		}
	}
	for _, c := range []containerd.Config{{}, {Dir: "relative"}, {Dir: "/x", Namespace: "not one"}, {Dir: "/x", Subnet: "::/64"}, {Dir: "/x", Subnet: "x"}, {Dir: "/x", Bridge: "a-name-that-is-too-long"}, {Dir: "/x", Runtimes: map[string]string{"runsc": "runsc"}}} {
		if _, err := containerd.Open(t.Context(), c); err == nil || errors.Is(err, holdfast.ErrEngine) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
