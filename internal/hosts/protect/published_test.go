package protect_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	ours "holdfast/internal/platform/linux/netns"
	"holdfast/test/lab/labtest"
)

// A container with a published port is removed and recreated under clients on this host
// and on another one.
func TestPublishedPort(t *testing.T) {
	needsRoot(t)
	const (
		name    = "published"
		address = "10.99.0.1:18085"
	)
	api := labtest.Docker(t)
	far := neighbour(t)
	run := fmt.Sprintf("docker -H %s run -d --name %s -p 18085:8080 %s", labtest.Engine(t).Host(), name, labtest.TestServer)
	remove := fmt.Sprintf("docker -H %s rm -f %s", labtest.Engine(t).Host(), name)
	shell := func(line string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	shell(run)
	t.Cleanup(func() { shell(remove) })
	protecttest.AwaitListening(t, address)
	c, err := api.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Published) == 0 || c.Published[0].Host.Port() != 18085 || c.Published[0].Inside != 8080 {
		t.Fatalf("published: %v", c.Published)
	}
	init := func(ctx context.Context) (int, error) {
		c, err := api.Inspect(ctx, name)
		if errors.Is(err, holdfast.ErrNotFound) {
			return 0, nil
		}
		return c.Pid, err
	}
	here := protecttest.StartLoad(t, address, 20*time.Millisecond, nil)
	there := protecttest.StartLoad(t, address, 20*time.Millisecond, func(network, address string) (c net.Conn, err error) {
		err = ours.Do(far, func() error {
			c, err = net.DialTimeout(network, address, protecttest.Patience)
			return err
		})
		return c, err
	})
	o := options(t, protect.Auto, []string{"sh", "-c", remove + " >&2 && " + run + " >&2"}, "18085")
	o.Published = &protect.Published{Init: init, Inside: []uint16{8080}}
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	for range 2 {
		r, err := protect.Run(t.Context(), o)
		if err != nil || r.Backend != protect.NFQueue || r.ExitCode != 0 || r.Released.Stats.Held == 0 {
			t.Errorf("report: %+v, %v", r, err)
		}
		if len(r.Refused) != 1 || !strings.Contains(r.Refused[0].Why, "another network namespace") {
			t.Errorf("refused: %+v", r.Refused)
		}
		t.Logf("until %s: %+v", time.Now().Format(time.StampMilli), r)
	}
	for url, ready := range map[string]bool{"http://localhost:18085/": true, "http://localhost:1/": false} {
		o.Ready, o.Limit = check(t, url), protecttest.Patience
		if !ready {
			o.Limit = 12 * time.Second // the command may take some seconds on a busy host
		}
		r, err := protect.Run(t.Context(), o)
		if a := r.Released.Ready; a == nil || a.Ready != ready || errors.Is(err, protect.ErrNotReady) == ready {
			t.Errorf("asked by %s: %+v, %v", url, a, err)
		}
	}
	o.Ready, o.Limit = check(t, "auto"), protecttest.Patience
	installed(t, o)
	if r, err := protect.Run(t.Context(), o); err != nil || r.Released.Ready != nil || !r.Installed || r.Released.Stats.Held == 0 {
		t.Errorf("installed: %+v, %v", r, err)
	}
	noneFailed(t, here)
	noneFailed(t, there)
}

// installed keeps a standing keeper for the addresses of o until the test ends.
func installed(t *testing.T, o protect.Options) {
	t.Helper()
	if err := protect.StartStanding(t.Context(), o.LockDir, protect.KeeperOptions{Argv: o.Keeper}); err != nil {
		t.Fatal(err)
	}
	k, err := protect.Dial(t.Context(), o.LockDir, "", o.Log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Quit(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var is []protect.Installed
	for _, a := range o.Addresses {
		is = append(is, protect.Installed{Address: a, Backend: protect.Auto})
	}
	if err := k.Install(t.Context(), is); err != nil {
		t.Fatal(err)
	}
}
