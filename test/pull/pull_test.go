package pull

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
	"holdfast/test/spinup/scene"
)

// TestPull shares one stage between the tests that do not change it.
func TestPull(t *testing.T) {
	s := open(t, lab.Options{})
	for _, c := range []struct {
		name string
		test func(*testing.T, *scene.Stage)
	}{
		{"FiguresAreTheAccessLogs", figuresAreTheAccessLogs},
		{"SharedLayersCrossOnce", sharedLayersCrossOnce},
		{"BadEndsAreClear", badEndsAreClear},
		{"Logins", logins},
		{"SomeFail", someFail},
		{"InterruptedIsNoSuccess", interruptedIsNoSuccess},
		{"ThrottledIsSlow", throttledIsSlow},
		{"OnATerminal", onATerminal},
		{"Platform", platform},
		{"Manifests", manifests},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Proxy.Set(registry.Faults{})
			s.Proxy.Passed()
			c.test(t, s)
		})
	}
}

var statsLine = regexp.MustCompile(`^Digest: sha256:[0-9a-f]{64}\nStatus: Downloaded newer image for \S+\npull stats: download [0-9.]+[KM]iB in [0-9.]+s \([0-9.]+[KMG]iB/s\), extract [0-9.]+[KM]iB in [0-9.]+s \([0-9.]+[KMG]iB/s\)( \[slow [^\]]+\])?\n$`)

func figuresAreTheAccessLogs(t *testing.T, s *scene.Stage) {
	u := newUser(t, s.Private.Host())
	sizes := push(t, s, "test/figures:1", scene.Layers(1, 6<<20, 2<<20, 700, 300_000))
	image := s.Registry.Host() + "/test/figures:1"
	from := line(t, s.Registry)
	e := u.must("pull", image)
	if !statsLine.MatchString(e.out) {
		t.Errorf("it printed %q", e.out)
	}
	// Without a terminal, each completed layer is a line.
	if done := strings.Count(e.err, ": done, "); done != 4 {
		t.Errorf("%d layers are done in %q", done, e.err)
	}
	records := u.records()
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	r := records[0]
	// A busy host may be slow.
	if slow := spinup.DefaultRules().Slow(r); strings.Contains(e.out, "[slow ") != (len(slow) > 0) {
		t.Errorf("it printed %q, slow is %v", e.out, slow)
	}
	if want := served(t, s.Registry, sizes, from); r.Pull == nil || r.Pull.Download.Bytes != want || !r.Pull.Download.Exact {
		t.Errorf("%+v, the registry served %d bytes", r.Pull, want)
	}
	if r.Outcome != spinup.OK || r.Kind != spinup.ForPull || r.Image != image || r.Cohort.Host != "here" || r.Cohort.Driver == "" || !strings.HasPrefix(r.Digest, "sha256:") {
		t.Errorf("the record is %+v", r)
	}

	// A second pull reports that the image is present.
	if e := u.must("pull", image); !strings.HasSuffix(e.out, "\nStatus: Image is up to date for "+image+"\nimage was in the cache\n") {
		t.Errorf("it printed %q", e.out)
	}
	list := u.json(u.must("pull", "--json", image))
	if len(list) != 1 || !list[0].Pull.Cached || list[0].Slow == nil {
		t.Errorf("%+v", list)
	}
	if e := u.must("pull", "-q", image); e.out != image+"\n" || e.err != "" {
		t.Errorf("quiet: %q, %q", e.out, e.err)
	}
	if n := len(u.records()); n != 4 {
		t.Errorf("%d records of 4 pulls", n)
	}
}

// A layer that two images share is sent and counted once. An image that is named twice is
// pulled once.
func sharedLayersCrossOnce(t *testing.T, s *scene.Stage) {
	u := newUser(t, s.Private.Host())
	base := scene.Layers(100, 8<<20, 3<<20)
	layers := map[string]int64{}
	for name, own := range map[string]uint64{"test/one:1": 110, "test/two:1": 120} {
		for digest, size := range push(t, s, name, append(slices.Clone(base), scene.Layers(own, 2<<20)...)) {
			layers[digest] = size
		}
	}
	s.Proxy.Set(registry.Faults{Rate: 16 << 20})
	one, two := s.Proxy.Host()+"/test/one:1", s.Proxy.Host()+"/test/two:1"
	list := u.json(u.must("pull", "--json", one, two, one))
	var want, got int64
	for _, p := range s.Proxy.Passed() {
		if layers[p.Blob] == 0 {
			continue
		}
		want += p.Bytes
		layers[p.Blob] = -layers[p.Blob] // seen
	}
	for digest, size := range layers {
		if size > 0 {
			t.Errorf("layer %s was not sent", digest)
		}
		want += size // a negative size cancels the layer's first occurrence
	}
	if want != 0 {
		t.Errorf("%d bytes more than the layers have were sent", want)
	}
	for _, p := range list {
		if !p.Pull.Done || !p.Pull.Download.Exact {
			t.Errorf("%+v", p)
		}
		got += p.Pull.Download.Bytes
	}
	var all int64
	for _, size := range layers {
		all -= size
	}
	if got != all || len(list) != 2 || len(u.records()) != 2 {
		t.Errorf("%d bytes were counted, the layers have %d; %d images, %d records", got, all, len(list), len(u.records()))
	}
}

// badEndsAreClear checks failed pulls: each prints one error and one hint, has its exit code,
// and is recorded as a failure with its cause.
func badEndsAreClear(t *testing.T, s *scene.Stage) {
	push(t, s, "test/bad:1", scene.Layers(200, 1000))
	guard(t, s)
	foreign(t, s)
	push(t, s, "test/large:1", scene.Layers(210, 4<<20, scene.FullSize))
	small, err := s.Full.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, image string
		engine      string
		code        int
		cause       spinup.Cause
		says        string
	}{
		{"no such tag", s.Registry.Host() + "/test/bad:2", "", 5, spinup.NoImage, "test/bad:2"},
		{"no such repository", s.Registry.Host() + "/test/none:1", "", 5, spinup.NoImage, "test/none:1"},
		{"registry down", "127.0.0.1:1/no/registry:1", "", 1, spinup.Unreachable, "connection refused"},
		{"no login", s.Guarded.Host() + "/test/guarded:1", "", 1, spinup.Denied, "test/guarded:1"},
		{"no platform", s.Registry.Host() + "/test/foreign:1", "", 1, spinup.NoPlatform, "test/foreign:1"},
		{"no name", "UPPER/case", "", 2, spinup.BadName, "UPPER/case"},
		{"no space", s.Registry.Host() + "/test/large:1", "unix://" + small.Socket, 1, spinup.NoSpace, "(at layer "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.engine == "" {
				c.engine = s.Private.Host()
			}
			u := newUser(t, c.engine)
			u.clear(u.run("pull", c.image), c.code, c.says)
			u.failed(spinup.Failed, c.cause)
		})
	}
	u := newUser(t, "unix:///run/missing.sock")
	u.clear(u.run("pull", s.Registry.Host()+"/test/bad:1"), 4, "/run/missing.sock")
}

// clear checks the exit code, an empty stdout, and one error with the text and one hint on
// stderr.
func (u *user) clear(e ended, code int, says string) {
	u.t.Helper()
	errs, hints := starting(e.err, "error: "), starting(e.err, "hint: ")
	if e.code != code || len(errs) != 1 || len(hints) != 1 || !strings.Contains(e.err, says) || e.out != "" {
		u.t.Errorf("exit code %d, want %d and %q: %q, %q", e.code, code, says, e.out, e.err)
	}
	if strings.Contains(e.err, "warning:") {
		u.t.Errorf("%q", e.err)
	}
}

// failed checks for one record of a failed pull.
func (u *user) failed(outcome spinup.Outcome, cause spinup.Cause) {
	u.t.Helper()
	records := u.records()
	if len(records) != 1 {
		u.t.Fatalf("%d records", len(records))
	}
	if r := records[0]; r.Outcome != outcome || r.Cause != cause || r.Pull == nil || r.Pull.Done || r.Pull.Cached || r.Error == "" {
		u.t.Errorf("the record is %+v, %+v", r, r.Pull)
	}
}

// guard pushes an image to a registry that requires a login.
func guard(t *testing.T, s *scene.Stage) {
	t.Helper()
	image, err := registry.Image(runtime.GOARCH, scene.Layers(300, 500_000)...)
	if err == nil {
		_, err = s.Guarded.Push(t.Context(), image, "test/guarded:1", scene.Login())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// foreign pushes a list without an image for this machine.
func foreign(t *testing.T, s *scene.Stage) {
	t.Helper()
	image, err := registry.Image("s390x", scene.Layers(310, 1000)...)
	if err == nil {
		err = s.Registry.PushList(t.Context(), image, v1.Platform{OS: "linux", Architecture: "s390x"}, "test/foreign:1")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func platform(t *testing.T, s *scene.Stage) {
	foreign(t, s)
	u := newUser(t, s.Private.Host())
	list := u.json(u.must("pull", "--json", "--platform", "linux/s390x", s.Registry.Host()+"/test/foreign:1"))
	if len(list) != 1 || !list[0].Pull.Done || !list[0].Pull.Download.Exact {
		t.Errorf("%+v", list)
	}
}

// logins uses the credentials of the file and of a credential helper.
func logins(t *testing.T, s *scene.Stage) {
	guard(t, s)
	host := s.Guarded.Host()
	image := host + "/test/guarded:1"
	auth := func(password string) string {
		return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte(scene.Login().User+":"+password)))
	}
	helper := func(u *user, script string) {
		if err := os.WriteFile(filepath.Join(u.dir, "bin", "docker-credential-here"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		u.dockerConfig(fmt.Sprintf(`{"credHelpers": {%q: "here"}}`, host))
	}
	for _, c := range []struct {
		name  string
		setUp func(u *user)
		says  string // text of the error, "" for none
	}{
		{"wrong password", func(u *user) { u.dockerConfig(auth("wrong")) }, "test/guarded"},
		{"damaged file", func(u *user) { u.dockerConfig("{") }, "config.json"},
		{"helper that fails", func(u *user) { helper(u, "echo it is locked; exit 1") }, "it is locked"},
		{"file", func(u *user) { u.dockerConfig(auth(scene.Login().Password)) }, ""},
		{"helper", func(u *user) {
			helper(u, fmt.Sprintf(`echo '{"ServerURL": %q, "Username": %q, "Secret": %q}'`, host, scene.Login().User, scene.Login().Password))
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newUser(t, s.Private.Host())
			c.setUp(u)
			e := u.run("pull", image)
			if c.says != "" {
				u.clear(e, 1, c.says)
				u.failed(spinup.Failed, spinup.Denied)
				return
			}
			if e.code != 0 {
				t.Errorf("exit code %d: %s", e.code, e.err)
			}
		})
	}
}

// someFail checks that the other images are pulled, and that each failure is reported.
func someFail(t *testing.T, s *scene.Stage) {
	push(t, s, "test/good:1", scene.Layers(400, 200_000))
	u := newUser(t, s.Private.Host())
	good, missing, down := s.Registry.Host()+"/test/good:1", s.Registry.Host()+"/test/good:2", "127.0.0.1:1/no/registry:1"
	e := u.run("pull", missing, good, down)
	if e.code != 1 || len(starting(e.err, "error: ")) != 2 || len(starting(e.err, "hint: ")) != 2 {
		t.Errorf("exit code %d: %s", e.code, e.err)
	}
	if len(starting(e.out, good+": ")) != 3 || len(starting(e.out, good+": pull stats: ")) != 1 || strings.Count(e.out, "\n") != 3 {
		t.Errorf("it printed %q", e.out)
	}
	outcomes := map[string]spinup.Outcome{}
	for _, r := range u.records() {
		outcomes[r.Image] = r.Outcome
	}
	if outcomes[good] != spinup.OK || outcomes[missing] != spinup.Failed || outcomes[down] != spinup.Failed {
		t.Errorf("%v", outcomes)
	}
}

// manifests checks manifests of real registries: plain, with a login, and from a list by
// platform.
func manifests(t *testing.T, s *scene.Stage) {
	guard(t, s)
	foreign(t, s)
	sizes := push(t, s, "test/manifest:1", scene.Layers(950, 1<<20, 300))
	got, err := puller.Registries{}.Sizes(t.Context(), s.Registry.Host()+"/test/manifest:1", "", engine.Login{})
	if err != nil || !maps.Equal(got, sizes) {
		t.Errorf("%v, %v, want %v", got, err, sizes)
	}
	login := engine.Login{Username: scene.Login().User, Password: scene.Login().Password}
	for _, c := range []struct {
		image, platform string
		login           engine.Login
		layers          int // 0: an error
	}{
		{s.Guarded.Host() + "/test/guarded:1", "", login, 1},
		{s.Guarded.Host() + "/test/guarded:1", "", engine.Login{}, 0},
		{s.Registry.Host() + "/test/foreign:1", "linux/s390x", engine.Login{}, 1},
		{s.Registry.Host() + "/test/foreign:1", "", engine.Login{}, 0},
		{s.Registry.Host() + "/test/foreign:1", "s390x/linux/is/no/platform", engine.Login{}, 0},
		{s.Registry.Host() + "/test/manifest:2", "", engine.Login{}, 0},
		{"127.0.0.1:1/no/registry:1", "", engine.Login{}, 0},
	} {
		got, err := puller.Registries{}.Sizes(t.Context(), c.image, c.platform, c.login)
		if len(got) != c.layers || (err != nil) != (c.layers == 0) {
			t.Errorf("%s for %q: %v, %v", c.image, c.platform, got, err)
		}
	}
}
