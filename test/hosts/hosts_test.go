package hosts

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm"
)

var (
	machines = flag.Bool("machines", false, "boot the machines of the matrix: half an hour or more for each")
	built    = flag.String("packages", "", "directory that keeps the built packages; a later run with it does not build them again")
)

const (
	report = "report.json"
	page   = "../../docs/hosts.md"
)

// host is a machine in a test.
type host struct {
	*testing.T
	*Machine
	cell    cell
	outcome Outcome
}

// The package is installed on each kind of host, and each of its properties is tested there.
// With UPDATE=1 the result replaces what the report and the page say of the cells that ran.
func TestMatrix(t *testing.T) {
	if !*machines {
		t.Skip("boots virtual machines for hours: make test-hosts")
	}
	first, second := packages(t)
	for _, c := range cells() {
		t.Run(c.name, func(t *testing.T) {
			x := &matrix{column: Column{Cell: c.name, Host: c.title, Rows: map[string]Outcome{}}}
			h := &host{T: t, Machine: New(t, c.suite), cell: c}
			if err := h.Boot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.engine != nil {
				c.engine(h)
			}
			x.column.Versions = versionsOf(h)
			// Every other row needs this one, also if -run selects some of them.
			x.try(h, install, func(h *host) { h.installs(first, second) })
			if c.refusal != "" {
				t.Run(Refused, func(t *testing.T) { x.try(&host{T: t, Machine: h.Machine, cell: c}, Refused, (*host).isRefused) })
				return
			}
			for _, r := range rows() {
				if why, ok := c.lacks[r.name]; ok {
					r.run = func(h *host) { h.outcome.Lacks = why }
				}
				t.Run(r.name, func(t *testing.T) { x.try(&host{T: t, Machine: h.Machine, cell: c}, r.name, r.run) })
			}
		})
	}
}

// matrix collects the results of a cell.
type matrix struct{ column Column }

// try runs a row, and records its result however it ends.
func (x *matrix) try(h *host, name string, run func(h *host)) {
	defer func() {
		if h.Failed() {
			if h.outcome.Defect == "" {
				h.outcome.Defect = "the test has failed"
			}
			journal, _ := h.Do(context.Background(), "journalctl -o cat -n 25 -u holdfast")
			h.Logf("the agent's journal ends with\n%s", journal)
		}
		x.column.Rows[name] = h.outcome
		record(h.T, x.column)
	}()
	run(h)
}

// record writes the results of a cell.
func record(t *testing.T, c Column) {
	if os.Getenv("UPDATE") == "" {
		return
	}
	r, err := ReadReport(report)
	if err != nil {
		t.Error(err)
		return
	}
	var order []string
	for _, c := range cells() {
		order = append(order, c.name)
	}
	r.Put(c, order)
	if err := r.Write(report); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(page, []byte(r.Page(titles())), 0o644); err != nil {
		t.Error(err)
	}
}

func titles() [][2]string {
	all := [][2]string{{install, "The package is installed, and its units start with the shipped configuration"}}
	for _, r := range rows() {
		all = append(all, [2]string{r.name, r.title})
	}
	return all
}

// The page is the report's.
func TestPage(t *testing.T) {
	r, err := ReadReport(report)
	if err != nil {
		t.Fatal(err)
	}
	want := r.Page(titles())
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/hosts.md is not what report.json gives: UPDATE=1 go test -run Page ./test/hosts\n%s", want)
	}
}

// packages builds the package in two versions.
func packages(t *testing.T) (first, second []byte) {
	t.Helper()
	top := *built
	if top == "" {
		top = t.TempDir()
	}
	build := func(version string) []byte {
		dir := filepath.Join(top, version)
		file := filepath.Join(dir, "holdfast_"+version+"_amd64.deb")
		if text, err := os.ReadFile(file); err == nil {
			return text
		}
		cmd := exec.CommandContext(t.Context(), "../../packaging/dev/dist.sh", "amd64")
		cmd.Env = append(os.Environ(), "DIST="+dir, "VERSION=v"+version, "COMPRESSION=gzip")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("dist.sh: %v\n%s", err, out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	return build("1.0.0"), build("1.1.0")
}

// images returns the image that the shipped configuration names, with busybox's programs, and
// one of the tests' server, which can be warm. Their files are in dir.
func images(ctx context.Context, dir string) ([]lab.Image, error) {
	demo, server := filepath.Join(dir, "demo"), filepath.Join(dir, "server")
	if err := vm.Build(ctx, demo, "build", "holdfast/demo"); err != nil {
		return nil, err
	}
	if err := labtest.BuildTestServer(ctx, server); err != nil {
		return nil, err
	}
	shell, err := lab.Busybox()
	if err != nil {
		return nil, err
	}
	shell.Ref, shell.Command = "holdfast-demo:latest", []string{"/bin/holdfast-demo"}
	shell.Files["/bin/holdfast-demo"] = demo
	shell.Env = []string{"PATH=/bin", "HOME=/root"}
	warm, err := lab.Binary(labtest.TestServer, server)
	return []lab.Image{shell, warm}, err
}

// load loads an image into the machine's engine.
func (h *host) load(image lab.Image) {
	h.Helper()
	archive, err := image.Archive()
	if err != nil {
		h.Fatal(err)
	}
	text, err := io.ReadAll(archive)
	if err != nil {
		h.Fatal(err)
	}
	h.write("image.tar", text)
	if h.cell.containerd {
		h.run("ctr -n holdfast images import image.tar; rm image.tar")
		return
	}
	h.run("docker load -q -i image.tar; rm image.tar")
}

// installs installs the package and starts its units, as docs/install.md says.
func (h *host) installs(first, second []byte) {
	all, err := images(h.Context(), h.TempDir())
	if err != nil {
		h.Fatal(err)
	}
	for _, image := range all {
		h.load(image)
	}
	if !h.cell.containerd {
		h.run("docker run --rm holdfast-demo:latest true") // the first container of an emulated machine takes a minute
	}
	h.write("dist/holdfast_1.0.0_amd64.deb", first)
	h.write("next/holdfast_1.1.0_amd64.deb", second)
	h.run("apt-get install -y ./dist/holdfast_*.deb")
	if out := h.run("systemctl is-active holdfast holdfast-drain holdfast-gc || true"); strings.Contains(out, "\nactive") || strings.HasPrefix(out, "active") {
		h.Errorf("the installation has started something: %s", out)
	}
	if h.cell.refusal != "" {
		h.run(h.cell.config)
		return
	}
	// An emulated machine is slow: the limits for a session that boots are longer, and fewer
	// boot at once.
	h.run(h.cell.config + `
sed -i 's/^  park_time: 30s/  park_time: 10m/; s/^  boots: 8/  boots: 2/; s/^      timeout: 30s/      timeout: 10m/' /etc/holdfast/holdfast.yaml
holdfast config check; systemctl enable --now holdfast`)
}

// isRefused checks that the agent refuses the host with one error and one hint.
func (h *host) isRefused() {
	out := h.run("holdfast agent 2>&1 && echo the agent has started || true")
	_, said, _ := strings.Cut(out, "error: ")
	problem, hint, found := strings.Cut(strings.TrimSpace(said), "\nhint: ")
	if !found || !strings.Contains(problem, h.cell.refusal) || strings.Contains(problem+hint, "\n") {
		h.Fatalf("the agent does not refuse this host by one error and one hint: %s", out)
	}
	h.impossible(problem + "; " + hint)
}

// Errorf and Fatalf also record the failure as the row's defect, in one line.
func (h *host) Errorf(format string, args ...any) {
	h.Helper()
	h.defect(fmt.Sprintf(format, args...))
	h.T.Errorf(format, args...)
}

// Fatalf is Errorf, and ends the test.
func (h *host) Fatalf(format string, args ...any) {
	h.Helper()
	h.defect(fmt.Sprintf(format, args...))
	h.T.Fatalf(format, args...)
}

// Fatal is Fatalf for an error.
func (h *host) Fatal(err error) {
	h.Helper()
	h.Fatalf("%v", err)
}

func (h *host) defect(text string) {
	if h.outcome.Defect == "" {
		h.outcome.Defect, _, _ = strings.Cut(text, "\n")
	}
}

// impossible says that the row cannot work on this kind of host: the product's own error, and
// its hint.
func (h *host) impossible(why string) {
	h.outcome.Impossible = why
	h.Logf("not possible: %s", why)
}

// run runs a script in the machine. A failure ends the test.
func (h *host) run(script string) string {
	h.Helper()
	out, err := h.Do(h.Context(), script)
	if err != nil {
		h.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// configure changes the agent's configuration by a script, and reloads it. Both are undone at
// the row's end.
func (h *host) configure(script string) {
	h.Helper()
	h.run("cp /etc/holdfast/holdfast.yaml keep.yaml")
	h.Cleanup(func() {
		if out, err := h.Do(context.Background(), "cp keep.yaml /etc/holdfast/holdfast.yaml; systemctl reload holdfast"); err != nil {
			h.T.Errorf("restore the configuration: %v\n%s", err, out)
		}
	})
	h.run(script + "\nholdfast config check; systemctl reload holdfast")
}

// template returns a script that adds a template to the agent's configuration.
func template(fields string) string {
	return `printf '\n  - {` + fields + `, port: 8080}\n' >>/etc/holdfast/holdfast.yaml`
}

func (h *host) write(path string, text []byte) {
	h.Helper()
	if err := h.Write(h.Context(), path, text); err != nil {
		h.Fatalf("write %s: %v", path, err)
	}
}

// json decodes the output of a command.
func (h *host) json(to any, command string) {
	h.Helper()
	out := h.run(command)
	if err := json.Unmarshal([]byte(out), to); err != nil {
		h.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// awaited waits until a script succeeds.
func (h *host) awaited(what, script string) {
	h.Helper()
	for begun := time.Now(); ; time.Sleep(time.Second) {
		out, err := h.Do(h.Context(), script)
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			h.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
}

// client returns a client that opens a new connection in the machine for each request.
func (h *host) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}, Timeout: patience}
}

// served requests a session at the gateway, and returns the agent's record of it.
func (h *host) served(key string) (s api.Session) {
	h.Helper()
	if err := h.get("http://127.0.0.1:7070/s/" + key + "/"); err != nil {
		h.Fatal(err)
	}
	h.json(&s, "holdfast session show --json "+key)
	return s
}

// isSame checks that a session is served by the same container in the same epoch.
func (h *host) isSame(before api.Session) {
	h.Helper()
	if after := h.served(string(before.Key)); after.ContainerID != before.ContainerID || after.Epoch != before.Epoch {
		h.Errorf("the session was %+v and is %+v", before, after)
	}
}
