package gc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
)

// TestANetworkUsedMeanwhileStays: a container uses the network between the two checks
// before the removal, and is removed again.
func TestANetworkUsedMeanwhileStays(t *testing.T) {
	m := newModel(time.Now().Add(-100 * time.Hour))
	id := m.addNetwork()
	c := imagesPolicy()
	c.Rules = []Rule{{Kinds: []Kind{Networks}, KeepFor: time.Hour}}
	col := hosted(t, c, m, nil, quietLog(), 1000)
	if err := col.d.Store.Note(Uses{Last: map[string]time.Time{networkKey(id): time.Now().Add(-2 * time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	m.between = func(*model) {
		if asked++; asked == 4 { // the plan has the containers, the images and the networks
			col.tracker.note(t.Context(), engine.Activity{Time: time.Now(), Action: "connect", Network: id})
		}
	}
	cy, err := col.Collect(t.Context(), ByRequest, nil)
	if err != nil || cy.Planned != 1 || len(m.networks) != 1 || len(cy.Skipped) != 1 || !strings.Contains(cy.Skipped[0].Reason, "used, or may have been used, since the plan") {
		t.Errorf("%+v, %v", cy, err)
	}
}

// endedContainer returns a container that exited long ago and has written a file, and a
// collector that may only remove this container.
func endedContainer(t *testing.T, spinups Spinups) (m *model, col *Collector, id, file string) {
	t.Helper()
	m = newModel(time.Now().Add(-time.Hour))
	id, old := strings.Repeat("c", 64), m.create(m.pull("app:1", []string{"a"}, ""), "")
	c := *m.containers[old]
	delete(m.containers, old)
	c.ID, c.Name, c.State = id, "job", "exited"
	m.containers[id] = &c
	policy := imagesPolicy()
	policy.Rules = []Rule{{Kinds: []Kind{Stopped}}}
	col = hosted(t, policy, m, spinups, quietLog(), 1000)
	m.overlay = true
	mount, written := filepath.Join(m.root, "image/overlay2/layerdb/mounts", id), filepath.Join(m.root, "overlay2/tree/diff")
	for _, dir := range []string{mount, written} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(written, "file")
	for name, text := range map[string]string{filepath.Join(mount, "mount-id"): "tree", file: "x"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m, col, id, file
}

// firstLook is the number of the first query after the plan of an endedContainer. The
// plan reads the containers, this container, the images and the layers of one image.
const firstLook = 5

func links(t *testing.T, file string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Error(err)
	}
	return uint64(st.Nlink)
}

// TestFilesOfAStartedContainerAreNotLinked: the container ran again after the plan.
func TestFilesOfAStartedContainerAreNotLinked(t *testing.T) {
	m, col, id, file := endedContainer(t, nil)
	asked := 0
	m.between = func(m *model) {
		asked++
		if asked == firstLook {
			m.start(id)
		}
		if n := links(t, file); n != 1 {
			t.Errorf("at question %d the file has %d links", asked, n)
		}
	}
	cy, err := col.Collect(t.Context(), ByRequest, nil)
	if err != nil || cy.Planned != 1 || len(cy.Skipped) != 1 || !strings.Contains(cy.Skipped[0].Reason, "running") {
		t.Errorf("%+v, %v", cy, err)
	}
}

// TestAContainersFilesAreLinkedWhenItsTimeHasCome: the files are not linked while the
// removal waits for an idle host, because the container may be started meanwhile.
func TestAContainersFilesAreLinkedWhenItsTimeHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, col, _, file := endedContainer(t, newCounter())
		col.stats.harm.Linked = 1 // a second for each of its two names
		begun, asked := time.Now(), 0
		m.between = func(*model) {
			asked++
			if waited := time.Since(begun); asked == firstLook && waited < 2*time.Second {
				t.Errorf("it was looked at after %v", waited)
			}
			if n := links(t, file); asked <= firstLook && n != 1 {
				t.Errorf("at question %d the file has %d links", asked, n)
			}
		}
		cy, err := col.Collect(t.Context(), ByRequest, nil)
		if err != nil || len(cy.Deleted) != 1 || cy.Deleted[0].Linked != 1 || asked < firstLook {
			t.Errorf("%+v, %v", cy, err)
		}
	})
}
