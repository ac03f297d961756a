package job

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/owner"
)

func TestParse(t *testing.T) {
	j, err := Parse(t.Context(), []byte(`
parallelism: 3
platform: linux/amd64
pull: always
images:
  - image: reg.example:5000/team/go@sha256:1234
    env: {CGO_ENABLED: "0", A: b}
    workdir: /src
    mounts:
      - {source: ., target: /src}
      - {type: volume, target: /cache}
      - {source: /abs, target: /x, read_only: true}
  - image: reg.example:5000/team/Big_DB.server:16
    ready: {port: 5432, timeout: 5s}
  - image: redis
    name: cache
    command: [redis-server, --save, ""]
steps:
  - run: |
      go vet ./...
      go test ./...
  - command: [make, lint]
  - {name: third, run: "true"}
`), "/home/me")
	if err != nil {
		t.Fatal(err)
	}
	if j.Parallelism != 3 || j.Platform != "linux/amd64" || j.Pull != PullAlways {
		t.Errorf("%+v", j)
	}
	var names []string
	for _, i := range j.Images {
		names = append(names, i.Name)
	}
	if want := []string{"primary", "big-db-server", "cache"}; !slices.Equal(names, want) {
		t.Errorf("names %q", names)
	}
	if m := j.Images[0].mounts(); len(m) != 3 || m[0] != (engine.Mount{Type: "bind", Source: "/home/me", Target: "/src"}) ||
		m[1].Type != "volume" || !m[2].ReadOnly || m[2].Source != "/abs" {
		t.Errorf("mounts %+v", m)
	}
	if env := j.Images[0].env(2, 3); !slices.Equal(env, []string{"HOLDFAST_JOB_INDEX=2", "HOLDFAST_JOB_TOTAL=3", "A=b", "CGO_ENABLED=0"}) {
		t.Errorf("env %q", env)
	}
	if r := j.Images[1].Ready; r == nil || r.Port != 5432 || r.Timeout != holdfast.Millis(5*time.Second) {
		t.Errorf("ready %+v", r)
	}
	if s := j.Steps; s[0].Name != "go vet ./... …" || s[1].Name != "make lint" || s[2].Name != "third" ||
		!slices.Equal(s[1].argv(), []string{"make", "lint"}) || !slices.Equal(s[2].argv(), []string{"sh", "-e", "-c", "true"}) {
		t.Errorf("steps %+v", s)
	}
	again, err := j.Complete()
	if err != nil || again.Parallelism != 3 || again.Images[0].Name != "primary" {
		t.Errorf("completed twice: %+v, %v", again, err)
	}
}

// An invalid job is refused. The error has the position and a hint.
func TestParseRefuses(t *testing.T) {
	const step = "steps: [{run: x}]\n"
	for text, want := range map[string]string{
		"":                               "images: the list is empty",
		"# nothing\n":                    "images: the list is empty",
		"images: [{image: a}]":           "steps: the list is empty",
		"imagse: []\n":                   "line 1, column 1: unknown field",
		"images: [{image: a, imgae: b}]": "line 1, column 21: unknown field",
		step + "images: [{name: x}]":     "images[0] (): image is missing",
		step + "images: {image: a}":      "line 2, column 9: mapping was used",
		step + "images: [{image: a, env: {A: 1, HOLDFAST_X: b}}]":                    "HOLDFAST_X",
		step + "images: [{image: a}, {image: b/a}, {image: a:2}]":                    `the name "a" is used twice`,
		step + "images: [{image: a, name: a.b}]":                                     `"a.b" is not made of`,
		step + "images: [{image: a, workdir: src}]":                                  "is not an absolute path",
		step + "images: [{image: a, ready: {port: 1}}]":                              "not allowed for the first image",
		step + "images: [{image: a}, {image: b, ready: {}}]":                         "either port or command",
		step + "images: [{image: a}, {image: b, ready: {port: 70000}}]":              "70000 is not between",
		step + "images: [{image: a}, {image: b, ready: {port: 1, http: x}}]":         "a path that starts with /",
		step + "images: [{image: a}, {image: b, ready: {port: 1, timeout: -1s}}]":    "is negative",
		step + "images: [{image: a}, {image: b, ready: {port: 1, timeout: soon}}]":   `invalid duration "soon"`,
		step + "images: [{image: a, mounts: [{type: nfs, target: /a}]}]":             "not one of bind, volume, tmpfs",
		step + "images: [{image: a, mounts: [{source: /a, target: b}]}]":             "is not an absolute path",
		step + "images: [{image: a, mounts: [{target: /b}]}]":                        "source: required for a bind",
		step + "images: [{image: a}]\nparallelism: 1000":                             "parallelism: 1000 is not between 1 and 256",
		step + "images: [{image: a}]\nparallelism: -1":                               "parallelism: -1",
		step + "images: [{image: a}]\nplatform: arm64":                               "not os/arch",
		step + "images: [{image: a}]\npull: maybe":                                   "not one of missing, always, never",
		step + "images: [{image: a}]\n" + step:                                       "line 3, column 1",
		"images: [{image: a}]\nsteps: [{run: x, command: [y]}]":                      "steps[0]: give either run or command",
		"images: [{image: a}]\nsteps: [{name: x}]":                                   "steps[0]",
		"images: [{image: a}]\nsteps: [" + strings.Repeat("{run: x}, ", 257) + "]":   "at most 256",
		step + "images: [" + strings.Repeat("{image: a}, ", 33) + "]":                "at most 32",
		"images: [{image: a}]\nsteps: [{run: " + strings.Repeat("x", 1<<20) + "}]\n": "at most 1048576 are read",
	} {
		_, err := Parse(t.Context(), []byte(text), "/")
		if !errors.Is(err, ErrJob) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
	_, err := Parse(t.Context(), []byte("imagse: []"), "/")
	if holdfast.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
}

func TestParseMount(t *testing.T) {
	for s, want := range map[string]Mount{
		".:/src":          {Type: "bind", Source: "/here", Target: "/src"},
		"../x:/src:ro":    {Type: "bind", Source: "/x", Target: "/src", ReadOnly: true},
		"/a/b:/c":         {Type: "bind", Source: "/a/b", Target: "/c"},
		"cache:/go/cache": {Type: "volume", Source: "cache", Target: "/go/cache"},
	} {
		if m, err := ParseMount(s, "/here"); err != nil || m != want {
			t.Errorf("%s: %+v, %v", s, m, err)
		}
	}
	for _, s := range []string{"", "/a", ":/a", "/a:", "/a:b", "/a:/b:rw", "/a:/b:ro:x"} {
		if m, err := ParseMount(s, "/here"); err == nil {
			t.Errorf("%q: %+v", s, m)
		}
	}
}

// Lines of several runs do not mix, and no byte is lost.
func TestOutputOfSeveralRuns(t *testing.T) {
	var out bytes.Buffer
	outs := newOutputs(&Runner{Stdout: &out}, 11)
	var writing sync.WaitGroup
	for i := range 11 {
		writing.Go(func() {
			o := outs(i)
			for range 100 {
				for _, part := range []string{"one ", "line\nand", " another\n"} {
					if n, err := o.stdout.Write([]byte(part)); err != nil || n != len(part) {
						t.Error(n, err)
					}
				}
			}
			_, _ = o.stdout.Write([]byte("unfinished"))
			o.flush()
			if o.stderr != nil {
				t.Errorf("run %d has somewhere to put its errors", i)
			}
		})
	}
	writing.Wait()
	counts := map[string]int{}
	for line := range strings.Lines(out.String()) {
		counts[line]++
	}
	if len(counts) != 33 || counts[" 0 | one line\n"] != 100 || counts["10 | and another\n"] != 100 || counts[" 7 | unfinished\n"] != 1 {
		t.Errorf("%v", counts)
	}
	out.Reset()
	long := newOutputs(&Runner{Stdout: &out}, 2)(1).stdout
	if _, err := long.Write(bytes.Repeat([]byte("x"), 3*maxLine)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "1 | x"); n != 3 || out.Len() != 3*(maxLine+5) {
		t.Errorf("a line without end became %d, of %d bytes", n, out.Len())
	}
	if one := newOutputs(&Runner{Stdout: &out}, 1)(0); one.stdout != &out || len(one.lines) != 0 {
		t.Error("the output of one run is not passed on as it is")
	}
}

// Owners whose objects Sweep removes.
func TestAbandoned(t *testing.T) {
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := owner.Parse(self.String()); err != nil || parsed != self || self.Pid != os.Getpid() {
		t.Fatalf("%+v became %+v, %v", self, parsed, err)
	}
	change := func(f func(*Owner)) string {
		o := self
		f(&o)
		return o.String()
	}
	now := time.Now()
	young, old := now.Add(-time.Minute), now.Add(-2*unclaimed)
	ended := []engine.Container{{State: "exited", Created: old}}
	reused := change(func(o *Owner) { o.Start++ })
	free := change(func(o *Owner) { o.Pid = 1<<22 + 1 }) // over the kernel's PID_MAX_LIMIT
	boot := change(func(o *Owner) { o.Boot = "another" })
	space := change(func(o *Owner) { o.Space = "pid:[1]" })
	for _, c := range []struct {
		name string
		r    remains
		want bool
	}{
		{"this process's", remains{owner: self.String(), containers: ended}, false},
		{"a reused pid's", remains{owner: reused, containers: []engine.Container{{State: "running", Created: young}}}, true},
		{"a free pid's", remains{owner: free}, true},
		{"without an owner", remains{owner: "", containers: ended}, false},
		{"no process's", remains{owner: change(func(o *Owner) { o.Pid = 0 }), containers: ended}, false},
		{"all processes'", remains{owner: change(func(o *Owner) { o.Pid = -1 }), containers: ended}, false},
		{"not understood", remains{owner: "1 x y z", containers: ended}, false},
		{"an earlier boot's", remains{owner: boot, containers: ended}, true},
		{"another host's, running", remains{owner: boot, containers: append(ended, engine.Container{State: "running", Created: old})}, false},
		{"another host's, young", remains{owner: boot, containers: append(ended, engine.Container{State: "created", Created: young})}, false},
		{"a container's", remains{owner: space, containers: ended}, true},
		{"a container's, with a young network", remains{owner: space, networks: []engine.Network{{Created: young}}}, false},
		{"a container's, with an old network", remains{owner: space, networks: []engine.Network{{Created: old}}}, true},
	} {
		if got := c.r.abandoned(self, now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestReleased(t *testing.T) {
	for said, want := range map[string]bool{released: true, "": false, "rel": false, released + "more": true} {
		if got := Released(strings.NewReader(said)); got != want {
			t.Errorf("%q: %v", said, got)
		}
	}
}

// The engine's message about a program that cannot be run is not output of the program.
func TestRefusal(t *testing.T) {
	const says = "OCI runtime exec failed: exec failed: \"x\": executable file not found in $PATH: unknown\r\n"
	for _, c := range []struct {
		writes    []string
		code      int
		want      int
		out, errs string
	}{
		{[]string{says}, 126, 127, "", says},
		{[]string{says}, 127, 127, "", says},
		{[]string{"OCI runtime exec failed: permission denied"}, 126, 126, "", "OCI runtime exec failed: permission denied"},
		{[]string{says}, 0, 0, says, ""},
		{[]string{says, "more"}, 126, 126, says + "more", ""},
		{[]string{"mine", says}, 126, 126, "mine" + says, ""},
		{nil, 127, 127, "", ""},
	} {
		var out, errs bytes.Buffer
		r := &refusal{to: &out}
		for _, w := range c.writes {
			if n, err := r.Write([]byte(w)); n != len(w) || err != nil {
				t.Error(n, err)
			}
		}
		code, err := r.end(c.code, &errs)
		if code != c.want || err != nil || out.String() != c.out || errs.String() != c.errs {
			t.Errorf("%q with %d: %d, %v, %q, %q", c.writes, c.code, code, err, &out, &errs)
		}
	}
}
