package agent

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/poll"
)

// spinups returns the host's records, the newest first.
func (h *host) spinups(flags ...string) []api.JudgedSpinup {
	h.t.Helper()
	var list []api.JudgedSpinup
	out := h.must(append([]string{"spinup", "ls", "--limit", "1000", "--json"}, flags...)...)
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		h.t.Fatal(err)
	}
	for _, r := range list {
		if err := r.Validate(); err != nil {
			h.t.Errorf("record %s: %v", r.ID, err)
		}
	}
	return list
}

// spinupOf waits for the records of a job, or for other tools of a container's name.
func (h *host) spinupOf(name string, n int) []api.JudgedSpinup {
	h.t.Helper()
	var got []api.JudgedSpinup
	poll.Until(h.t, fmt.Sprintf("%d spin-ups of %s are recorded", n, name), func() bool {
		got = nil
		for _, r := range h.spinups() {
			if r.Job == name || r.Name == name {
				got = append(got, r)
			}
		}
		return len(got) >= n
	})
	if len(got) > n {
		h.t.Errorf("%d spin-ups of %s: %+v", len(got), name, got)
	}
	return got
}

// metric returns the value of one line of the agent's metrics, "" for none.
func (h *host) metric(name string) string {
	h.t.Helper()
	res, err := http.Get("http://" + h.apiTCP + "/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	for line := range strings.Lines(readAll(h.t, res.Body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

const brokenTemplate = template + `
  - name: broken
    image: ` + labtest.TestServer + `
    command: [/no/such/program]
    init: false
    port: 8080
  - name: dying
    image: busybox:latest
    command: [/bin/sh, -c, "exit 3"]
    port: 8080
  - name: missing
    image: 127.0.0.1:1/nothing:1
    port: 8080
  - name: badstep
    image: ` + labtest.TestServer + `
    port: 8080
    init_steps:
      - {name: prepare, image: "busybox:latest", command: [/bin/sh, -c, "exit 4"]}
`

func TestBootsAreRecorded(t *testing.T) {
	h := newHost(t, "templates:"+brokenTemplate)
	h.start()
	h.open("good")
	for _, name := range []string{"broken", "dying", "missing", "badstep"} {
		if r := h.cli("session", "start", "s-"+name, "--template", name); r.code == 0 {
			t.Errorf("%s came up", name)
		}
	}
	good := h.spinupOf("good", 1)[0]
	if good.Kind != spinup.ForSession || good.Outcome != spinup.OK || good.Image != labtest.TestServer || good.Container == "" || !good.Pull.Cached {
		t.Errorf("%+v", good)
	}
	for _, phase := range []spinup.Phase{spinup.Create, spinup.Start, spinup.Ready} {
		if good.Times[phase] <= 0 || good.Times[phase] > good.Took {
			t.Errorf("%s took %v of %v", phase, good.Times[phase], good.Took)
		}
	}
	if c := good.Cohort; c.Host != h.node || !strings.HasPrefix(c.Engine, engineName()+" ") || c.Driver == "" || c.Kernel == "" || c.ImageStore == "" {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]struct {
		in    spinup.Phase
		cause spinup.Cause
	}{"broken": {spinup.Start, spinup.Other}, "dying": {spinup.Ready, spinup.Other}, "missing": {spinup.Download, spinup.Unreachable}} {
		r := h.spinupOf("s-"+name, 1)[0]
		if r.Outcome != spinup.Failed || r.Failed != want.in || r.Cause != want.cause || r.Error == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// The container of the step started. The session's own container was never created.
	steps := h.spinupOf("s-badstep", 2)
	if steps[0].Outcome != spinup.Failed || steps[0].Image != labtest.TestServer || steps[1].Outcome != spinup.OK || steps[1].Image != "busybox:latest" {
		t.Errorf("%+v", steps)
	}
	for _, r := range h.spinups() {
		if r.Kind == spinup.ForOther {
			t.Errorf("counted twice: %+v", r)
		}
	}
	for line, want := range map[string]string{
		`holdfast_spinups_total{cause="",kind="session",outcome="ok"}`:      "2",
		`holdfast_spinup_judged_total{kind="session",phase="ready"}`:        "1",
		`holdfast_spinup_phase_seconds_count{kind="session",phase="total"}`: "6",
		`holdfast_spinups_under_way{kind="session"}`:                        "0",
	} {
		if got := h.metric(line); got != want {
			t.Errorf("%s is %q, want %s", line, got, want)
		}
	}
	if out := h.must("spinup", "show", good.ID); !strings.Contains(out, "result     ok") || !strings.Contains(out, "image was in the cache") {
		t.Errorf("%s", out)
	}
	if out := h.must("spinup", "stats", "--by", "image"); !strings.Contains(out, labtest.TestServer) || !strings.Contains(out, "MEDIAN") {
		t.Errorf("%s", out)
	}
}

// Records remain after a restart and without an agent. An agent with a damaged file starts a
// new one.
func TestRecordsSurviveTheAgent(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("a")
	before := h.spinupOf("a", 1)[0].ID
	h.signal(syscall.SIGUSR2)
	h.wait()
	if got := h.spinups("--data-dir", filepath.Join(h.dir, "data")); len(got) != 1 || got[0].ID != before {
		t.Errorf("without an agent: %+v", got)
	}
	h.start()
	if got := h.spinups(); len(got) != 1 || got[0].ID != before {
		t.Errorf("after a restart: %+v", got)
	}
	h.signal(syscall.SIGUSR2)
	h.wait()
	file := filepath.Join(h.dir, "data", spinup.FileName)
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	if got := h.spinups(); len(got) != 0 {
		t.Errorf("of a damaged file: %+v", got)
	}
	if aside, err := filepath.Glob(file + ".damaged-*"); err != nil || len(aside) != 1 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
	h.open("b")
	h.spinupOf("b", 1)
}

// The record of a boot with a pull has the figures of the pull. Several waiting boots share
// one pull.
func TestPulledBootsAreRecorded(t *testing.T) {
	h := newNode(t, labtest.Engine(t).Host(), "")
	reg, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	})
	sizes, err := reg.Push(t.Context(), serverImage(t), "web:1", registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, size := range sizes {
		bytes += size
	}
	h.configure("templates:\n  - {name: web, image: \"" + reg.Host() + "/web:1\", port: 8080, ready: {http: /healthz, timeout: 30s}}\n")
	h.start()
	var opening sync.WaitGroup
	for _, key := range []string{"a", "b", "c"} {
		opening.Go(func() { h.open(key) })
	}
	opening.Wait()
	var fetched int64
	var own int
	for _, key := range []string{"a", "b", "c"} {
		r := h.spinupOf(key, 1)[0]
		if r.Outcome != spinup.OK || r.Pull == nil || !r.Pull.Done {
			t.Fatalf("%s: %+v", key, r.Pull)
		}
		fetched += r.Pull.Download.Bytes
		if !r.Pull.Cached && !r.Pull.Joined {
			own++
			if r.Times[spinup.Download] <= 0 || r.Times[spinup.Extract] <= 0 || !r.Pull.Download.Exact || r.Digest == "" {
				t.Errorf("%s: %+v", key, r)
			}
			if out := h.must("spinup", "show", r.ID); strings.Count(out, " complete ") != len(sizes) {
				t.Errorf("it has %d layers:\n%s", len(sizes), out)
			}
		}
	}
	if fetched != bytes || own != 1 {
		t.Errorf("%d bytes in %d pulls, the image has %d", fetched, own, bytes)
	}
	if got := h.metric(`holdfast_spinup_pulls_total{from="registry"}`); got != "1" {
		t.Errorf("%s pulls", got)
	}
}

// TestPrivateRegistry: sessions and warm containers use the logins that docker login has saved,
// in the file or in a credential helper. A login that is replaced is used for the next pull.
func TestPrivateRegistry(t *testing.T) {
	docker := filepath.Join(t.TempDir(), "docker")
	t.Setenv("DOCKER_CONFIG", docker)
	t.Setenv("PATH", docker+":"+os.Getenv("PATH"))
	h := newNode(t, labtest.Engine(t).Host(), "")
	const secret = "the-password-of-this-test"
	login := registry.Options{User: "reader", Password: secret}
	reg, err := registry.Start(t.Context(), login)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, tag := range []string{"web:1", "web:2"} {
		if _, err := reg.Push(t.Context(), serverImage(t), tag, login); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(docker, 0o700), os.WriteFile(filepath.Join(docker, name), []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	saved := func(password string) {
		write("config.json", fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, reg.Host(), base64.StdEncoding.EncodeToString([]byte("reader:"+password))))
	}
	h.configure(fmt.Sprintf(`templates:
  - {name: web, image: "%[1]s/web:1", port: 8080, ready: {http: /healthz, timeout: 30s}}
  - {name: quick, image: "%[1]s/web:2", port: 8080, ready: {http: /healthz, timeout: 30s}, warm: 1}
`, reg.Host()))
	h.start()
	refused := func(key string) {
		t.Helper()
		if r := h.cli("session", "start", key, "--template", "web"); r.code == 0 || !strings.Contains(r.err, reg.Host()) {
			t.Errorf("exit code %d: %s", r.code, r.err)
		}
	}
	refused("first")
	saved("a-wrong-password")
	refused("second")
	saved(secret)
	h.must("session", "start", "third", "--template", "web")
	write("docker-credential-here", fmt.Sprintf("#!/bin/sh\necho '{\"ServerURL\": %q, \"Username\": \"reader\", \"Secret\": %q}'\n", reg.Host(), secret))
	write("config.json", fmt.Sprintf(`{"credHelpers": {%q: "here"}}`, reg.Host()))
	poll.Until(t, "a container is warm", func() bool { return h.metric(`holdfast_warm_ready{template="quick"}`) == "1" })
	h.signal(syscall.SIGTERM)
	h.wait()
	for _, password := range []string{secret, "a-wrong-password", base64.StdEncoding.EncodeToString([]byte("reader:" + secret))} {
		if log := h.out.String() + h.errs.String(); strings.Contains(log, password) {
			t.Errorf("the log contains %q", password)
		}
	}
}

// serverImage is the test server in two layers that no other test pulls.
func serverImage(t *testing.T) v1.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server")
	if err := labtest.BuildTestServer(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Cmd: []string{"/program"}}})
	if err != nil {
		t.Fatal(err)
	}
	own := []byte(t.Name() + time.Now().String())
	image, err = mutate.AppendLayers(image, fileLayer(t, "own", own), fileLayer(t, "program", append(program, own...)))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// fileLayer is a layer of one file.
func fileLayer(t *testing.T, name string, content []byte) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// An announcement of another tool counts until the tool ends it. That of a crashed tool
// counts until it expires.
func TestUnderWay(t *testing.T) {
	h := newHost(t, "")
	h.start()
	const gauge = `holdfast_spinups_under_way{kind="outside"}`
	id := strings.TrimSpace(h.must("spinup", "begin", "--for", "1m", "--name", "deploy"))
	h.must("spinup", "begin", "--for", "1s", "--name", "crashed")
	if got := h.metric(gauge); got != "2" && got != "1" { // on a slow machine the second has ended
		t.Errorf("%s are under way", got)
	}
	poll.Until(t, "the crashed tool's is over", func() bool { return h.metric(gauge) == "1" })
	h.must("spinup", "end", id)
	if got := h.metric(gauge); got != "0" {
		t.Errorf("%s are under way after the end", got)
	}
	if r := h.cli("spinup", "end", id); r.code != 5 {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}

// The agent stores the records of `holdfast pull` and `holdfast run`, and refuses an invalid
// record.
func TestCommandsAddTheirRecords(t *testing.T) {
	h := newHost(t, "")
	h.start()
	c, err := client.New(client.Options{Socket: h.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var adding sync.WaitGroup
	for range 100 {
		adding.Go(func() {
			timer := spinup.NewTimer(spinup.ForPull, "x:1", spinup.Cohort{Driver: "aufs"})
			timer.Job("job-1")
			timer.Pulled(spinup.Pull{Image: "x:1", Done: true, Cached: true})
			if err := c.AddSpinup(t.Context(), timer.End(nil)); err != nil {
				t.Error(err)
			}
		})
	}
	adding.Wait()
	ids := map[string]bool{}
	for _, r := range h.spinupOf("job-1", 100) {
		ids[r.ID] = r.Cohort.Driver == "aufs" && r.Outcome == spinup.OK
	}
	if len(ids) != 100 {
		t.Errorf("%d of 100 are kept", len(ids))
	}
	half := spinup.NewTimer(spinup.ForPull, "x:1", spinup.Cohort{}).End(nil)
	half.Pull = &spinup.Pull{Image: "x:1"}
	var refused *api.Error
	if err := c.AddSpinup(t.Context(), half); !errors.As(err, &refused) || refused.Code != api.CodeBadRequest {
		t.Errorf("half a pull that counts as a success: %v", err)
	}
	if got := h.metric(`holdfast_spinups_total{cause="",kind="pull",outcome="ok"}`); got != "100" {
		t.Errorf("%s are counted", got)
	}
}

// engineName returns the name of the package's engine.
func engineName() string {
	if labtest.OnContainerd() {
		return "containerd"
	}
	return "docker"
}
