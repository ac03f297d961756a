package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// Containers start and end continuously during the examination.
func TestContainersVanish(t *testing.T) {
	api := labtest.Docker(t)
	ctx, stop := context.WithCancel(t.Context())
	g, gctx := errgroup.WithContext(ctx)
	for range 2 {
		g.Go(func() error {
			for gctx.Err() == nil {
				// The container is removed in any case, also at the end of the test.
				work := context.WithoutCancel(gctx)
				id, err := api.Create(work, engine.Spec{Image: labtest.Busybox, Network: "none", Memory: 64 << 20, CPUs: 0.5})
				if err == nil {
					err = api.Start(work, id)
				}
				if err == nil {
					err = api.Remove(work, id)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	r := report(t, command(t, "", nil, "doctor", "--for", "6s", "--json"))
	stop()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	judged(t, r, append(byFiles, byBPF...)...)
	for _, gap := range r.Gaps {
		t.Errorf("a probe failed: %+v", gap)
	}
}

// hostileEngine is an engine's API with one container of the given name.
func hostileEngine(t *testing.T, id, name, image string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal([]map[string]any{{"Id": id, "Names": []string{"/" + name}, "Image": image, "State": "running", "Created": 1}})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/containers/json") {
			_, _ = w.Write(list)
		}
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return "unix://" + socket
}

// A container is throttled, so that the doctor finds it. All texts that its makers
// control are hostile: its name, its image, its command.
func TestHostileNames(t *testing.T) {
	const evil = "\x1b]0;owned\x07\x1b[31m<script>alert(1)</script>\n$(reboot)`reboot`\u202e\r"
	api := labtest.Docker(t)
	// A limit that a container reaches within each period of 100 ms also on a busy host.
	id, err := api.Create(t.Context(), engine.Spec{Image: labtest.Busybox, Network: "none", CPUs: 0.02,
		Command: []string{"/bin/sh", "-c", "while :; do :; done", evil + strings.Repeat("x", 5000)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	if err := api.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	host := hostileEngine(t, id, evil+strings.Repeat("n", 20_000), evil+strings.Repeat("i", 20_000))
	d := finish(t, command(t, host, nil, "doctor", "--for", "3s"))
	if d.code != 0 && d.code != 9 || !strings.Contains(d.out, "[throttling]") {
		t.Fatalf("exit code %d: %s%s", d.code, d.out, d.errs)
	}
	for line := range strings.Lines(d.out + d.errs) {
		for _, r := range strings.TrimSuffix(line, "\n") {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is not removed: %.200q", r, line)
				break
			}
		}
		if len(line) > 1000 {
			t.Errorf("a line of %d bytes: %.200q", len(line), line)
		}
	}
	for line := range strings.Lines(d.out) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "docker "); ok && strings.Contains(command, "reboot") {
			t.Errorf("an unsafe command: %s", line)
		}
	}
	r := report(t, command(t, host, nil, "doctor", "--for", "3s", "--json"))
	for _, f := range r.Findings {
		if f.Subject == nil || f.Subject.ContainerID != id {
			continue
		}
		if len(f.Subject.Container) > 1000 || len(f.Subject.Image) > 1000 {
			t.Errorf("a name of %d bytes", len(f.Subject.Container))
		}
		for _, c := range f.Cures {
			if strings.Contains(c.Command, "reboot") {
				t.Errorf("an unsafe command: %s", c.Command)
			}
		}
		return
	}
	t.Errorf("no finding names the container: %s", fmt.Sprint(r.Findings))
}
