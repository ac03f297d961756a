package enginetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func (s *suite) pull(t *testing.T) {
	r := newRegistry(t, 3)
	ref := r.ref("good")
	status := map[string]map[string]bool{} // layer → the engine's words
	var current int64
	var last engine.PullEvent
	for ev, err := range s.Engine.Pull(s.context(t), ref, engine.PullOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Time.Before(last.Time) {
			t.Errorf("an event of %v after one of %v", ev.Time, last.Time)
		}
		if status[ev.Layer] == nil {
			status[ev.Layer] = map[string]bool{}
		}
		status[ev.Layer][ev.Status] = true
		current = max(current, ev.Current)
		last = ev
	}
	if len(status) != 1+3 {
		t.Errorf("events of %d layers, wanted 3 and the whole: %v", len(status)-1, status)
	}
	for layer, words := range status {
		if layer != "" && !words["Pull complete"] {
			t.Errorf("layer %s: %v", layer, words)
		}
	}
	if current == 0 {
		t.Error("no event has the number of bytes")
	}
	want, err := r.image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := s.Engine.ImageDigest(s.context(t), ref); err != nil || digest != want.String() {
		t.Errorf("after the pull: digest %q, %v, want %q", digest, err, want)
	}
	// The second time there is nothing to do.
	for ev, err := range s.Engine.Pull(s.context(t), ref, engine.PullOptions{}) {
		if err != nil || ev.Status == "Pull complete" {
			t.Errorf("pull of a present image: %+v, %v", ev, err)
		}
	}
}

func (s *suite) pullErrors(t *testing.T) {
	r := newRegistry(t, 2)
	r.corrupt = r.layers[1]
	for what, ref := range map[string]string{
		"a missing tag":           r.ref("missing"),
		"a missing registry":      "127.0.0.1:1/no/such:image",
		"no reference":            "Not A Reference",
		"a layer that is corrupt": r.ref("good"),
	} {
		var events int
		var last error
		for _, err := range s.Engine.Pull(s.context(t), ref, engine.PullOptions{}) {
			if last != nil {
				t.Errorf("%s: the pull goes on after %v", what, last)
			}
			last = err
			events++
		}
		if last == nil || errors.Is(last, holdfast.ErrEngine) {
			t.Errorf("%s: %v", what, last)
		}
		if strings.Contains(what, "corrupt") && events < 3 {
			t.Errorf("%s: the error came with the %d. event, not in the middle", what, events)
		}
		if _, err := s.Engine.ImageID(s.context(t), "x/"+ref); err == nil {
			t.Errorf("%s: the image is present", what)
		}
	}
}

// pullPlatform pulls with a platform: an invalid one, and this machine's.
func (s *suite) pullPlatform(t *testing.T) {
	r := newRegistry(t, 1)
	for _, platform := range []string{"linux", "linux/", "linux/arm/v7/x"} {
		for _, err := range s.Engine.Pull(s.context(t), r.ref("good"), engine.PullOptions{Platform: platform}) {
			if err == nil || holdfast.HintOf(err) == "" {
				t.Errorf("platform %q: %v", platform, err)
			}
		}
	}
	var last error
	for _, err := range s.Engine.Pull(s.context(t), r.ref("good"), engine.PullOptions{Platform: "linux/" + runtime.GOARCH}) {
		last = err
	}
	if last != nil {
		t.Errorf("of this machine's platform: %v", last)
	}
}

// pullStopped ends a hanging pull in two ways.
func (s *suite) pullStopped(t *testing.T) {
	r := newRegistry(t, 1)
	r.stall()
	within(t, "a pull that the reader breaks off", func() {
		for range s.Engine.Pull(s.context(t), r.ref("good"), engine.PullOptions{}) {
			break
		}
	})
	ctx, cancel := context.WithCancel(s.context(t))
	within(t, "a cancelled pull", func() {
		var last error
		for _, err := range s.Engine.Pull(ctx, r.ref("good"), engine.PullOptions{}) {
			last = err
			cancel()
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("a cancelled pull: %v", last)
		}
	})
	if _, err := s.Engine.ImageID(s.context(t), r.ref("good")); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("the image of a cancelled pull: %v", err)
	}
}

// pullCrash kills the daemon in the middle of a pull: the stream has to end with an
// error.
func (s *suite) pullCrash(t *testing.T) {
	r := newRegistry(t, 1)
	r.stall()
	var last error
	var crashed bool
	for _, err := range s.Engine.Pull(s.context(t), r.ref("good"), engine.PullOptions{}) {
		last = err
		if err == nil && !crashed {
			crashed = true
			if err := s.Crash(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !errors.Is(last, holdfast.ErrEngine) {
		t.Errorf("the daemon crashed and the pull ended with %v", last)
	}
	if err := s.Start(s.context(t)); err != nil {
		t.Fatal(fmt.Errorf("after the crash: %w", err))
	}
}
