package gc

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"holdfast/internal/hosts/gc"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// direct is a containerd with what a collector needs.
type direct struct {
	*testing.T
	*containerd.Engine
	cfg  containerd.Config
	api  *client.Client
	data string
	base lab.Image
}

func newDirect(t *testing.T) *direct {
	t.Helper()
	e, daemon := labtest.Containerd(t)
	d := &direct{T: t, Engine: e, cfg: labtest.ContainerdConfig(daemon), data: t.TempDir()}
	var err error
	if d.base, err = lab.Busybox(); err != nil {
		t.Fatal(err)
	}
	if d.api, err = client.New(daemon.Socket()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.api.Close() })
	return d
}

// in returns a context for direct calls to containerd.
func in(namespace string) context.Context {
	return namespaces.WithNamespace(context.Background(), namespace)
}

// image creates an image of that many files.
func (d *direct) image(ref string, files int) lab.Image {
	d.Helper()
	seed++
	img := lab.ManyFiles(d.base, ref, files, 1000, seed)
	archive, err := img.Archive()
	if err == nil {
		err = d.Load(d.Context(), archive)
	}
	if err != nil {
		d.Fatal(err)
	}
	return img
}

// container creates and starts a container.
func (d *direct) container(image string) string {
	d.Helper()
	id, err := d.Create(d.Context(), engine.Spec{Image: image, Command: []string{"sleep", "600"}, Network: "none"})
	if err == nil {
		err = d.Start(d.Context(), id)
	}
	if err != nil {
		d.Fatal(err)
	}
	return id
}

// collect runs one cycle.
func (d *direct) collect(c gc.Config) gc.Cycle {
	d.Helper()
	log := slog.New(slog.NewTextHandler(d.Output(), nil))
	cy, err := gc.New(c, gc.Deps{Engine: d.Engine, Store: gc.NewStore(d.data, log), LockDir: d.data, Log: log}).Collect(d.Context(), gc.ByRequest, nil)
	if err != nil {
		d.Fatal(err)
	}
	return cy
}

// names returns the names of the images in a namespace.
func (d *direct) names(namespace string) []string {
	d.Helper()
	list, err := d.api.ListImages(in(namespace))
	if err != nil {
		d.Fatal(err)
	}
	var names []string
	for _, i := range list {
		names = append(names, i.Name())
	}
	slices.Sort(names)
	return names
}

// kept returns the objects of a namespace on containerd's disk: snapshots, blobs, and leases,
// which keep other objects.
func (d *direct) kept(namespace string) (files map[string]bool, leases int) {
	d.Helper()
	files = map[string]bool{}
	err := d.api.SnapshotService(containerd.DefaultSnapshotter).Walk(in(namespace), func(_ context.Context, i snapshots.Info) error {
		files[i.Name] = true
		return nil
	})
	if err == nil {
		err = d.api.ContentStore().Walk(in(namespace), func(i content.Info) error {
			files[i.Digest.String()] = true
			return nil
		})
	}
	if err != nil {
		d.Fatal(err)
	}
	list, err := d.api.LeasesService().List(in(namespace))
	if err != nil {
		d.Fatal(err)
	}
	return files, len(list)
}

// settle runs containerd's own collector to its end.
func (d *direct) settle() {
	d.Helper()
	ctx, store := in(containerd.DefaultNamespace), d.api.ImageService()
	names := d.names(containerd.DefaultNamespace)
	some, err := store.Get(ctx, names[0])
	if err == nil {
		_, err = store.Create(ctx, images.Image{Name: "settle", Target: some.Target})
	}
	if err == nil {
		err = store.Delete(ctx, "settle", images.SynchronousDelete())
	}
	if err != nil {
		d.Fatal(err)
	}
}

// wantKept waits until containerd's own collector has freed everything else. That collector runs
// after a hundred changes (mutation_threshold). The test makes fewer, so it triggers the
// collector.
func (d *direct) wantKept(when string, want map[string]bool) {
	d.Helper()
	d.settle()
	var files map[string]bool
	var leases int
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if files, leases = d.kept(containerd.DefaultNamespace); leases == 0 && maps.Equal(files, want) {
			return
		}
	}
	d.Errorf("%s: containerd keeps with %d leases %v, wanted %v", when, leases, slices.Sorted(maps.Keys(files)), slices.Sorted(maps.Keys(want)))
}

// runs fails if a container's files are missing.
func (d *direct) runs(id string) {
	d.Helper()
	if code, err := d.Exec(d.Context(), id, engine.Exec{Command: []string{"sh", "-c", "cat /bin/busybox /files/*/* > /dev/null || cat /bin/busybox > /dev/null"}}); err != nil || code != 0 {
		d.Errorf("container %.12s: %d, %v", id, code, err)
	}
}

// A collection on containerd removes unused objects with their files and leases. Objects of
// containers and of other namespaces stay, also if the collector is killed in the middle.
func TestOnContainerd(t *testing.T) {
	d := newDirect(t)
	shared := d.image("up:1", 50)
	theirs, err := shared.Archive()
	if err != nil {
		t.Fatal(err)
	}
	others, err := d.api.Import(in("moby"), theirs)
	if err == nil {
		err = client.NewImage(d.api, others[0]).Unpack(in("moby"), containerd.DefaultSnapshotter)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.image("ended:1", 20)
	up, ended := d.container("up:1"), d.container("ended:1")
	if err := d.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	all := everything()
	d.collect(all) // objects of the lab
	d.settle()
	want, leases := d.kept(containerd.DefaultNamespace)
	theirFiles, _ := d.kept("moby")
	if leases != 0 {
		t.Errorf("%d leases", leases)
	}
	d.wantKept("at first", want)
	base := slices.Clone(d.names(containerd.DefaultNamespace))

	d.image("old:1", 300)
	old, err := d.api.ImageService().Get(in(containerd.DefaultNamespace), "docker.io/library/old:1")
	if err == nil {
		_, err = d.api.ImageService().Create(in(containerd.DefaultNamespace), images.Image{Name: "docker.io/library/old:again", Target: old.Target})
	}
	if err != nil {
		t.Fatal(err)
	}
	cy := d.collect(all)
	if len(cy.Skipped) > 0 || len(cy.Deleted) == 0 || len(cy.Notices) > 0 {
		t.Errorf("%+v", cy)
	}
	if got := d.names(containerd.DefaultNamespace); !slices.Equal(got, base) {
		t.Errorf("images %v, wanted %v", got, base)
	}
	d.wantKept("after a cycle", want)

	for i := range 4 {
		d.image(fmt.Sprintf("x:%d", i), 100)
	}
	killed(t, childArgs{Containerd: &d.cfg, Data: d.data, Config: all}, func(out *bufio.Scanner) { out.Scan() })
	d.collect(all)
	if got := d.names(containerd.DefaultNamespace); !slices.Equal(got, base) {
		t.Errorf("after a collector was killed: images %v, wanted %v", got, base)
	}
	d.wantKept("after a collector was killed", want)
	d.runs(up)
	if err := d.Start(t.Context(), ended); err != nil {
		t.Error(err)
	}
	d.runs(ended)

	if err := d.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	all.Rules = append(all.Rules, gc.Rule{Kinds: []gc.Kind{gc.Stopped}})
	d.collect(all)
	d.collect(all) // the image that only it had
	if got := d.names(containerd.DefaultNamespace); len(got) != len(base)-1 {
		t.Errorf("after the container went: %v, before %v", got, base)
	}
	if now, _ := d.kept("moby"); !maps.Equal(now, theirFiles) || len(d.names("moby")) != 1 {
		t.Errorf("another namespace has %v, had %v", now, theirFiles)
	}
	d.runs(up)
}
