package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// An engine has 2,000 containers that do not run. An agent starts beside them, sessions boot,
// and a collection removes all of them.
func TestManyStoppedContainers(t *testing.T) {
	labtest.NeedLong(t, "creates 2,000 containers, for two minutes")
	private := labtest.Private(t, lab.Options{})
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if err := private.Import(t.Context(), busybox); err != nil {
		t.Fatal(err)
	}
	h := newHostOn(t, private.Host(), `gc: {min_age: 0s, rules: [{kinds: [created]}]}`+"\ntemplates:"+template)
	x := newTool(t, h.docker)
	const many = 2000
	begun := time.Now()
	var group errgroup.Group
	group.SetLimit(4)
	for i := range many {
		group.Go(func() error {
			_, err := x.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
				Name: fmt.Sprintf("many-%d", i), Config: &container.Config{Image: "busybox:latest", Cmd: []string{"/bin/true"}},
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d containers in %v", many, time.Since(begun))
	holdfastBinary(t) // its build is no part of the start
	begun = time.Now()
	h.start()
	t.Logf("the agent serves after %v", time.Since(begun))
	begun = time.Now()
	h.open("alice")
	t.Logf("a session serves after %v", time.Since(begun))
	begun = time.Now()
	if res := h.cliFor(10*time.Minute, "gc", "run", "--timeout", "10m"); res.code != 0 {
		t.Fatalf("%+v", res)
	}
	t.Logf("the collection took %v", time.Since(begun))
	list, err := x.api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		if c.Image == "busybox:latest" {
			t.Errorf("%v is left", c.Names)
		}
	}
	h.open("alice")
}
