package pull

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast/bench"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/poll"
	"holdfast/test/spinup/scene"
)

// agentConfig writes the configuration of the user's agent.
func (u *user) agentConfig(more string) {
	u.t.Helper()
	text, err := os.ReadFile(u.config())
	if err != nil {
		u.t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("api: {"), []byte("gateway: {listen: \"127.0.0.1:0\"}\napi: {listen: \"\", "), 1)
	text = append(text, more+"\ntemplates: [{name: web, image: \"web:1\", port: 80}]\n"...)
	if err := os.WriteFile(u.config(), text, 0o600); err != nil {
		u.t.Fatal(err)
	}
}

// agent runs an agent until the test stops it or ends.
func (u *user) agent() (stop func()) {
	u.t.Helper()
	var out output
	cmd := exec.Command(holdfastBinary(u.t), "agent", "--config", u.config())
	cmd.Env, cmd.Stdout, cmd.Stderr = u.env, &out, &out
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its output says why
	}()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		<-ended
	}
	u.t.Cleanup(func() {
		stop()
		if u.t.Failed() {
			u.t.Logf("the agent said:\n%s", out.String())
		}
	})
	for deadline := time.Now().Add(patience); u.run("version", "--json").code != 0 || !strings.Contains(u.run("version").out, "pid"); {
		select {
		case <-ended:
			u.t.Fatal("the agent ended")
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			u.t.Fatal("the agent does not answer")
		}
	}
	return stop
}

// An agent pulls the images of its prefetch list, at its start and after a user has deleted
// one. Images that a command adds stay on the list after a restart.
func TestImagesThatAreKept(t *testing.T) {
	s := open(t, lab.Options{})
	push(t, s, "test/fixed:1", scene.Layers(900, 300_000))
	push(t, s, "test/named:1", scene.Layers(910, 300_000))
	fixed, named := s.Registry.Host()+"/test/fixed:1", s.Registry.Host()+"/test/named:1"
	u := newUser(t, s.Private.Host())
	u.agentConfig("images: {prefetch: [\"" + fixed + "\"]}")
	stop := u.agent()
	poll.Until(t, "the configured image is there", func() bool { return has(t, s.Engine, fixed) })
	if e := u.must("pull", "--prefetch", named); !strings.Contains(e.out, "\npull stats: ") {
		t.Errorf("%q, %q", e.out, e.err)
	}
	for _, image := range []string{fixed, named} {
		remove(t, s, image)
		poll.Until(t, "a deleted image is there again", func() bool { return has(t, s.Engine, image) })
	}
	stop()
	remove(t, s, named)
	u.agent()
	poll.Until(t, "the next agent has fetched it", func() bool { return has(t, s.Engine, named) })
	var kept []prefetch.Entry
	poll.Until(t, "all is there", func() bool {
		if err := json.Unmarshal([]byte(u.must("pull", "--prefetch", "--json").out), &kept); err != nil {
			t.Fatal(err)
		}
		return len(kept) == 2 && kept[0].State == prefetch.Present && kept[1].State == prefetch.Present
	})
	if kept[0].Image != fixed || !kept[0].Fixed || kept[1].Image != named || kept[1].Fixed {
		t.Errorf("%+v", kept)
	}
	if e := u.run("pull", "--prefetch", "--remove", fixed); e.code != 2 || len(starting(e.err, "hint: ")) != 1 {
		t.Errorf("%d, %s", e.code, e.err)
	}
	u.must("pull", "--prefetch", "--remove", named)
	if out := u.must("pull", "--prefetch").out; strings.Contains(out, named) {
		t.Errorf("%q", out)
	}
}

func has(t *testing.T, e engine.Engine, image string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := e.ImageID(ctx, image)
	return err == nil
}

// remove deletes an image as a user would.
func remove(t *testing.T, s *scene.Stage, image string) {
	t.Helper()
	cmd := exec.Command("docker", "--host", s.Private.Host(), "rmi", image)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The whole experiment in small.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	res, err := bench.Pull(t.Context(), bench.PullOptions{N: 2, Size: 4, Holdfast: []string{holdfastBinary(t), "pull"}, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if res.Failed != 0 || len(res.Rows) != 3 || res.Score <= 0 {
		t.Errorf("%+v", res)
	}
	for _, r := range res.Rows {
		if r.N != 2 || r.P50 <= 0 {
			t.Errorf("row %+v", r)
		}
	}
	if err := res.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
}
