package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// brokenRuntime fails as runc does on a kernel with AppArmor and without its profile, until
// the file mended exists. It then is runc. Like runc it writes its error to the file of --log.
const brokenRuntime = `#!/bin/sh
[ -e %q ] && exec %q "$@"
while [ "$1" != --log ]; do shift || exit 2; done
echo '{"level":"error","msg":"runc create failed: unable to start container process: unable to apply apparmor profile: apparmor failed to apply profile: write /proc/self/attr/apparmor/exec: no such file or directory"}' >> "$2"
exit 1
`

// readyz returns the answer of the agent's probe; 0 if no agent answers.
func (h *host) readyz() (int, api.Error) {
	h.t.Helper()
	res, err := http.Get("http://" + h.apiTCP + "/readyz")
	if err != nil {
		return 0, api.Error{}
	}
	defer res.Body.Close()
	var answer struct{ Error api.Error }
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		h.t.Errorf("%s: %v", text, err)
	}
	return res.StatusCode, answer.Error
}

// TestHostThatStartsNoContainer: a host on which `docker run` fails is recognised before the
// first session, and becomes ready without a restart when it is mended. What a person has on
// the engine stays.
func TestHostThatStartsNoContainer(t *testing.T) {
	dir := t.TempDir()
	mended, script := filepath.Join(dir, "mended"), filepath.Join(dir, "runtime")
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, fmt.Appendf(nil, brokenRuntime, mended, runc), 0o700); err != nil {
		t.Fatal(err)
	}
	private := labtest.Private(t, lab.Options{Args: []string{"--add-runtime=broken=" + script, "--default-runtime=broken"}})
	h := newHostOn(t, private.Host(), "sessions: {networks: 1}\ntemplates:"+template)
	person, err := h.api().Create(t.Context(), engine.Spec{Name: "of-a-person", Image: labtest.TestServer})
	if err != nil {
		t.Fatal(err)
	}
	before := h.objects()

	r := h.cli("config", "check", h.configFile(), "--try-engine")
	wantError(t, r, 1, "apparmor failed to apply profile", "install the package apparmor")
	h.launch(&h.out, &h.errs)
	h.served = true // its containers are removed at the end
	var answer api.Error
	poll.Until(t, "the agent says that its host starts no container", func() bool {
		var code int
		code, answer = h.readyz()
		if code == http.StatusOK {
			t.Fatal("the agent says that it is ready")
		}
		return strings.Contains(answer.Message, "apparmor failed to apply profile")
	})
	if answer.Code != api.CodeNotReady || !strings.Contains(answer.Advice, "install the package apparmor") {
		t.Errorf("%+v", answer)
	}
	wantError(t, h.cli("session", "start", "alice"), 5, "apparmor", "install the package apparmor")
	poll.Until(t, "the node's list has it", func() bool { return strings.Contains(h.must("node", "ls"), "starts no container") })
	if got := h.metric(`holdfast_runtime_works{runtime="default"}`); got != "0" {
		t.Errorf("the metric is %s", got)
	}
	h.clean(before)

	if err := os.WriteFile(mended, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the mended host is ready", func() bool { code, _ := h.readyz(); return code == http.StatusOK })
	h.open("alice")
	if out := h.must("config", "check", h.configFile(), "--try-engine"); !strings.Contains(out, "docker") || !strings.Contains(out, "runtimes tried: default") {
		t.Errorf("config check says %q", out)
	}
	h.must("node", "drain")
	h.clean(before)
	if c, err := h.api().Inspect(t.Context(), person); err != nil || c.State != "created" {
		t.Errorf("a person's container: %+v, %v", c, err)
	}
}

// objects returns the names of all containers and images, without those of the networks that
// the agent keeps ready.
func (h *host) objects() string {
	h.t.Helper()
	e, ok := h.api().(engine.Trier)
	if !ok {
		h.t.Fatalf("%T has no images", h.api())
	}
	list, err := e.List(h.t.Context(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	images, err := e.Images(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	for _, i := range images {
		names = append(names, i.Refs...)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "holdfast-holder")
	})
	slices.Sort(names)
	return strings.Join(names, " ")
}

// clean waits until the engine has what it had before, and nothing of a trial.
func (h *host) clean(before string) {
	h.t.Helper()
	poll.Until(h.t, "the engine has "+before, func() bool { return h.objects() == before })
}
