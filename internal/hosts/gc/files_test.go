package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
)

// makeTree makes a directory like that of a layer: files in directories, links, a pipe,
// and a link to a path outside.
func makeTree(t *testing.T, dir string, files int) {
	t.Helper()
	for i := range files {
		sub := filepath.Join(dir, fmt.Sprintf("d%d", i%7), "deep")
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), make([]byte, 5000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink("d0", filepath.Join(dir, "in")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func noWait(ctx context.Context) error { return ctx.Err() }

func newTrash(t *testing.T, root string) *trash {
	t.Helper()
	trees := filepath.Join(root, "overlay2")
	if err := os.MkdirAll(trees, 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := openTrash(root, trees)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// linked links the files of a tree into the trash.
func linked(t *testing.T, tr *trash, dir string) tally {
	t.Helper()
	b, err := tr.begin(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	w := &walker{ctx: t.Context(), wait: noWait, batch: b}
	if err := w.walk(dir); err != nil {
		t.Fatal(err)
	}
	return w.tally
}

func TestLinkedFilesOutliveTheirTreeAndAreFreed(t *testing.T) {
	root := t.TempDir()
	tr := newTrash(t, root)
	dir := filepath.Join(root, "overlay2", "x", "diff")
	makeTree(t, dir, perDirectory+100) // more than one directory of the trash
	got := linked(t, tr, dir)
	if got.Linked != perDirectory+100 || got.Names != got.Linked+3+1+14 || got.Bytes < int64(got.Linked)*4096 {
		t.Errorf("%+v", got)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if tr.empty() {
		t.Fatal("nothing was linked away")
	}
	waits := 0
	f, err := tr.free(t.Context(), func(context.Context) error { waits++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if f.Files != got.Linked || f.Bytes < got.Bytes || waits < got.Linked/stepNames {
		t.Errorf("freed %+v in %d steps, linked %+v", f, waits, got)
	}
	if !tr.empty() {
		t.Error("something is left")
	}
}

// TestDroppedLinksChangeNothing: the engine refuses the removal, or the process dies
// before it. The files keep their contents and names.
func TestDroppedLinksChangeNothing(t *testing.T) {
	root := t.TempDir()
	tr := newTrash(t, root)
	dir := filepath.Join(root, "overlay2", "x", "diff")
	makeTree(t, dir, 50)
	linked(t, tr, dir)
	f, err := newTrash(t, root).free(t.Context(), noWait) // as the next process
	if err != nil || f.Files != 50 || f.Bytes != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Nlink != 1 || st.Size != 5000 {
				t.Errorf("%s: %d links, %d bytes, %v", path, st.Nlink, st.Size, err)
			}
			files++
		}
		return err
	})
	if err != nil || files != 50 {
		t.Errorf("%d files, %v", files, err)
	}
}

// TestStrayThingsInTheTrash: foreign files are removed, and links are not followed.
func TestStrayThingsInTheTrash(t *testing.T) {
	root := t.TempDir()
	tr := newTrash(t, root)
	outside := filepath.Join(root, "outside")
	makeTree(t, outside, 10)
	makeTree(t, filepath.Join(tr.dir, "deep"), 10) // has links and a pipe, and is deeper than the collector's own trees
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(tr.dir, "link")),
		os.WriteFile(filepath.Join(tr.dir, "file"), []byte("x"), 0o600),
		unix.Mkfifo(filepath.Join(tr.dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := tr.free(t.Context(), noWait)
	if err != nil || !tr.empty() || f.Files != 3+10+3 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "d0", "deep", "0")); err != nil {
		t.Errorf("what the link leads to: %v", err)
	}
}

// TestTheTrashNeedsNoReadme: the README is only informative. Here it cannot be written.
func TestTheTrashNeedsNoReadme(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, ownDir, "README"), 0o700); err != nil {
		t.Fatal(err)
	}
	if tr := newTrash(t, root); !tr.empty() {
		t.Error("there is something in it")
	}
}

func TestFreeingStopsAndGoesOn(t *testing.T) {
	root := t.TempDir()
	tr := newTrash(t, root)
	dir := filepath.Join(root, "overlay2", "x")
	makeTree(t, dir, 500)
	linked(t, tr, dir)
	stop := errors.New("a spin-up begins")
	steps := 0
	first, err := tr.free(t.Context(), func(context.Context) error {
		if steps++; steps > 4 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || first.Files == 0 || first.Files >= 500 {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := tr.free(t.Context(), noWait)
	if err != nil || first.Files+second.Files != 500 {
		t.Errorf("%d and then %d, %v", first.Files, second.Files, err)
	}
}

func TestAWalkStopsWithItsContext(t *testing.T) {
	root := t.TempDir()
	makeTree(t, filepath.Join(root, "x"), 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := &walker{ctx: ctx, wait: noWait}
	if err := w.walk(filepath.Join(root, "x")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := (&walker{ctx: t.Context(), wait: noWait}).walk(filepath.Join(root, "x", "out")); err == nil {
		t.Error("a link was followed")
	}
}

func TestOneCycleAcrossProcesses(t *testing.T) {
	root := t.TempDir()
	first, err := lockCycle(root, "")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := lockCycle(root, ""); !errors.Is(err, ErrBusy) {
		t.Errorf("a second one: %v, %v", f, err)
	}
	first.Close()
	again, err := lockCycle(root, "")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestOverlayReadsOnlyWhatTheEngineNames(t *testing.T) {
	root := t.TempDir()
	info := engine.Info{Socket: "/s", StorageDriver: "overlay2", ImageStore: engine.GraphDriver, DataRoot: root}
	if _, why := openOverlay(info); why == "" {
		t.Error("there are no layers")
	}
	chain := "sha256:" + fmt.Sprintf("%064x", 7)
	layer := filepath.Join(root, "image", "overlay2", "layerdb", "sha256", chain[7:])
	for _, dir := range []string{layer, filepath.Join(root, "overlay2")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(layer, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("size", "1234")
	write("cache-id", "abc123")
	o, why := openOverlay(info)
	if o == nil {
		t.Fatal(why)
	}
	if n, ok := o.size(chain); n != 1234 || !ok {
		t.Errorf("size %d, %v", n, ok)
	}
	if dirs, err := o.image(t.Context(), []string{chain}); err != nil || !slices.Equal(dirs, []string{filepath.Join(root, "overlay2", "abc123", "diff")}) {
		t.Errorf("layer at %v, %v", dirs, err)
	}
	write("cache-id", "../../../../etc")
	if dirs, _ := o.image(t.Context(), []string{chain}); len(dirs) > 0 {
		t.Errorf("layer at %v", dirs)
	}
	for _, bad := range []string{"", "sha256:..", "sha256:" + "../" + chain[10:], chain + "/x"} {
		if _, ok := o.size(bad); ok {
			t.Errorf("%q has a size", bad)
		}
	}
}

// TestSnapshotsAreNoOtherPaths: no path that containerd names is read unless it is a snapshot's.
func TestSnapshotsAreNoOtherPaths(t *testing.T) {
	root := t.TempDir()
	m := &model{snapshots: root}
	c := &Collector{d: Deps{Engine: m}}
	info := engine.Info{Socket: "/s", StorageDriver: "overlayfs", ImageStore: engine.ContainerdStore, DataRoot: root}
	s, why, err := c.openFiles(info, site{local: root, disk: root})
	if s == nil || err != nil {
		t.Fatal(why, err)
	}
	chain := "sha256:" + fmt.Sprintf("%064x", 7)
	one, two := filepath.Join(root, "snapshots/1/fs"), filepath.Join(root, "snapshots/2/fs")
	m.dirs = []string{two, one}
	if dirs, err := s.image(t.Context(), []string{chain}); err != nil || !slices.Equal(dirs, m.dirs[:1]) {
		t.Errorf("the topmost layer: %v, %v", dirs, err)
	}
	if dirs, err := s.image(t.Context(), []string{chain, chain}); err != nil || !slices.Equal(dirs, m.dirs) {
		t.Errorf("all layers: %v, %v", dirs, err)
	}
	for _, bad := range []string{"", "/", root, one + "/..", filepath.Join(root, "snapshots/../fs"), filepath.Join(root, "snapshots/x/fs"), "/etc", root + "2/snapshots/1/fs"} {
		m.dirs = []string{bad}
		if dirs, err := s.image(t.Context(), []string{chain}); err == nil {
			t.Errorf("%q is read: %v", bad, dirs)
		}
	}
	for _, bad := range []string{"", "x", chain} {
		if dirs, err := s.container(t.Context(), bad); err == nil {
			t.Errorf("container %q has %v", bad, dirs)
		}
	}
	for _, other := range []func(*engine.Info, *site){
		func(i *engine.Info, _ *site) { i.Socket = "" },
		func(i *engine.Info, _ *site) { i.StorageDriver = "btrfs" },
		func(_ *engine.Info, at *site) { at.disk, at.hidden = "", errors.New("not here") },
		func(_ *engine.Info, at *site) { at.disk = filepath.Join(root, "gone") },
	} {
		i, at := info, site{local: root, disk: root}
		other(&i, &at)
		if s, why, err := c.openFiles(i, at); s != nil || why == "" || err != nil {
			t.Errorf("%+v: %v, %q, %v", i, s, why, err)
		}
	}
	if s, why, _ := c.openFiles(info, site{}); s != nil || why == "" {
		t.Errorf("on another host: %v, %q", s, why)
	}
}
