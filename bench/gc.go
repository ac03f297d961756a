package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/tasks"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
)

// GCOptions configures `holdfast bench gc`.
type GCOptions struct {
	Images   int           // images for each way of collecting; 0 is 6
	Files    int           // files per image; 0 is 8,000, with Locked 20,000, with Pressure 250
	Rate     float64       // creates per second; 0 is 4, with Pressure 2
	Duration time.Duration // minimum duration of the creates; 0 is 1 min, with Pressure 10 min
	Plot     string        // HTML file for a plot of the latencies; "" is none
	Rounds   int           // rounds of an idle engine and of Holdfast, in turns; 0 is 3
	Locked   bool          // measures only the engine's removal of an image, with and without linking its files away
	Pairs    int           // number of pairs with Locked; 0 is 3
	Dockerd  string        // directory with the programs of another engine, as lab.Options.With; "" is the installed one
	Pressure bool          // measures only whether the disk stays under gc.critical while spin-ups never pause
	Progress io.Writer     // receives progress lines; nil discards them
}

// Check reports invalid values.
func (o GCOptions) Check() error {
	switch {
	case o.Images < 0 || o.Images > 100, o.Files < 0 || o.Files > 100_000:
		return fmt.Errorf("%d images of %d files: the limit is 100 images of 100000 files", o.Images, o.Files)
	case o.Rate < 0 || o.Rate > 1000:
		return fmt.Errorf("%v creates a second: the limit is 1000", o.Rate)
	case o.Pressure && o.Locked:
		return errors.New("locked and pressure cannot be measured in one run")
	case o.Rounds < 0 || o.Rounds > 100:
		return fmt.Errorf("%d rounds: the limit is 100", o.Rounds)
	case o.Duration != 0 && o.Duration < 2*gcLead || o.Pairs < 0 || o.Pairs > 100:
		return fmt.Errorf("duration is %v and pairs is %d: the duration must be at least %v, and pairs at most 100", o.Duration, o.Pairs, 2*gcLead)
	}
	return nil
}

func (o GCOptions) complete() GCOptions {
	files, rate, duration := 8000, 4.0, time.Minute
	switch {
	case o.Locked:
		files = 20_000
	case o.Pressure:
		files, rate, duration = 250, 2, 10*time.Minute
	}
	o.Images, o.Files, o.Rate = cmp.Or(o.Images, 6), cmp.Or(o.Files, files), cmp.Or(o.Rate, rate)
	o.Rounds = cmp.Or(o.Rounds, 3)
	o.Duration, o.Pairs = cmp.Or(o.Duration, duration), cmp.Or(o.Pairs, 3)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// fileSize is the size of each file of an image in bytes.
const fileSize = 16 << 10

// The ways of collecting, in their order.
const (
	gcIdle   = "create: idle"
	gcPrune  = "create: image prune -a"
	gcDocuum = "create: oldest first without a pause"
	gcPeer   = "create: docuum"
	gcPlain  = "create: ours without linking"
	gcOurs   = "create: ours"
)

// slowCreate is the duration from which on a create counts as slow.
const slowCreate = time.Second

// GC measures creates at a fixed rate (open loop) while images are removed in
// different ways. It works only inside a lab.
//
// Score is the p99 of creates on an idle engine ÷ the p99 while Holdfast collects.
// Failed counts, while Holdfast collects, creates over 1 s, failed creates, and a disk
// above its low mark at the end.
func GC(ctx context.Context, o GCOptions) (Result, error) {
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	x, err := newGCBench(ctx, o.complete())
	return conduct(ctx, x, err)
}

type gcBench struct {
	pulling // the images to collect
	o       GCOptions
	disk    *lab.Disk // the engine's own disk, nil for none
	api     *client.Client
	base    lab.Image
	seed    uint64
	list    *underway.List
}

const gcBase = "bench-base:latest"

func newGCBench(ctx context.Context, o GCOptions) (*gcBench, error) {
	x := &gcBench{o: o, list: underway.New(boottime.Now)}
	disk, err := x.openDisk()
	if err != nil {
		return x, err
	}
	if err := x.open(ctx, disk.With(o.Dockerd)); err != nil {
		return x, err
	}
	if x.api, err = client.New(client.WithHost(x.lab.Host())); err != nil {
		return x, err
	}
	x.base = lab.Image{Ref: gcBase, Command: []string{"/never-started"}}
	if err := x.lab.Import(ctx, x.base); err != nil {
		return x, err
	}
	// Only the images with many files may be collected.
	if _, err := x.create(ctx, gcBase, "keeps-the-base"); err != nil {
		return x, err
	}
	return x, nil
}

func (x *gcBench) close() error {
	var errs []error
	if x.api != nil {
		errs = append(errs, x.api.Close())
	}
	errs = append(errs, x.pulling.close())
	if x.disk != nil {
		errs = append(errs, x.disk.Remove())
	}
	return errors.Join(errs...)
}

// run measures the selected part.
func (x *gcBench) run(ctx context.Context) (Result, error) {
	switch {
	case x.o.Locked:
		return x.locked(ctx)
	case x.o.Pressure:
		return x.pressure(ctx)
	}
	return x.compare(ctx)
}

// fill pulls the images of one round, waits until all data is on disk, and returns the
// images' names.
func (x *gcBench) fill(ctx context.Context, n int) ([]string, error) {
	var refs []string
	for range n {
		x.seed++
		ref := fmt.Sprintf("bench-many:%d", x.seed)
		img := lab.ManyFiles(lab.Image{Command: x.base.Command}, ref, x.o.Files, fileSize, x.seed)
		pulled, err := x.pull(ctx, img)
		if err != nil {
			return nil, err
		}
		refs = append(refs, pulled)
	}
	unix.Sync()
	return refs, nil
}

// pull pushes a new image to the registry, makes the engine pull it, and returns its
// name in the registry.
func (x *gcBench) pull(ctx context.Context, img lab.Image) (string, error) {
	archive, err := img.Tar()
	if err != nil {
		return "", err
	}
	image, err := registry.FromTar(runtime.GOARCH, archive, img.Command...)
	if err != nil {
		return "", err
	}
	if _, err := x.registry.Push(ctx, image, img.Ref, registry.Options{}); err != nil {
		return "", err
	}
	ref := x.registry.Host() + "/" + img.Ref
	for _, err := range x.engine.Pull(ctx, ref, engine.PullOptions{}) {
		if err != nil {
			return "", fmt.Errorf("pull %s: %w", ref, err)
		}
	}
	return ref, nil
}

// way is one way of collecting. It must free at least want bytes.
type way struct {
	name string
	run  func(ctx context.Context, refs []string, low int64) error
}

func (x *gcBench) ways() []way {
	ways := []way{{gcIdle, nil}, {gcPrune, x.prune}, {gcDocuum, x.oldestFirst}}
	if path, err := exec.LookPath("docuum"); err == nil {
		ways = append(ways, way{gcPeer, func(ctx context.Context, _ []string, low int64) error { return x.docuum(ctx, path, low) }})
	}
	return append(ways,
		way{gcPlain, func(ctx context.Context, _ []string, low int64) error { return x.ours(ctx, low, false) }},
		way{gcOurs, func(ctx context.Context, _ []string, low int64) error { return x.ours(ctx, low, true) }})
}

// order returns every way once, then the first and the last in turns, because these
// two are compared.
func (x *gcBench) order() []way {
	ways := x.ways()
	order := slices.Clone(ways)
	for range x.o.Rounds - 1 {
		order = append(order, ways[0], ways[len(ways)-1])
	}
	return order
}

// prune collects with `docker image prune -a`.
func (x *gcBench) prune(ctx context.Context, _ []string, _ int64) error {
	_, err := x.api.ImagePrune(ctx, client.ImagePruneOptions{Filters: client.Filters{}.Add("dangling", "false")})
	return err
}

// oldestFirst collects as docuum does when the disk is over its threshold: one image
// after the other until the disk is below it.
func (x *gcBench) oldestFirst(ctx context.Context, refs []string, low int64) error {
	for _, ref := range refs {
		if used, err := x.used(); err != nil || used <= low {
			return err
		}
		if err := x.engine.RemoveImage(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// ours runs a cycle of Holdfast's collector and empties its trash.
func (x *gcBench) ours(ctx context.Context, low int64, link bool) error {
	c := gc.DefaultConfig()
	c.MinAge, c.Link = 0, link
	c.Low, c.High = gc.Bytes(low), gc.Bytes(low+1)
	c.Critical = gc.Percent(99.9)
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Images}, Pressure: true}}
	log := slog.New(slog.NewTextHandler(x.o.Progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	data := filepath.Join(x.dir, fmt.Sprint(link))
	if !link {
		// The collector waits for a longer quiet time than the load ever leaves. Only a
		// critically full disk makes it continue.
		bounded, cancel := context.WithTimeout(ctx, x.o.Duration-gcLead)
		defer cancel()
		err := x.collect(bounded, c, data, log)
		if bounded.Err() != nil && ctx.Err() == nil {
			return nil
		}
		return err
	}
	return x.collect(ctx, c, data, log)
}

func (x *gcBench) collect(ctx context.Context, c gc.Config, data string, log *slog.Logger) error {
	_, err := gc.New(c, gc.Deps{
		Engine: x.engine, Store: gc.NewStore(data, log), Spinups: x.list, LockDir: data, Log: log,
	}).Collect(ctx, gc.ByThreshold, nil)
	return err
}

// used returns the bytes in use on the engine's disk.
func (x *gcBench) used() (int64, error) {
	d, err := gc.DiskOf(x.lab.DataRoot())
	return d.Used(), err
}

// compare measures all ways.
func (x *gcBench) compare(ctx context.Context) (Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return Result{}, err
	}
	r := Result{Name: "gc", Machine: machine}
	var rounds []gcRound
	took := map[string][]float64{}
	order := x.order()
	for i, w := range order {
		fmt.Fprintf(x.o.Progress, "%d of %d, %s: %d images of %d files\n", i+1, len(order), w.name, x.o.Images, x.o.Files)
		round, err := x.round(ctx, w)
		if err != nil {
			return r, fmt.Errorf("%s: %w", w.name, err)
		}
		rounds = append(rounds, round)
		took[w.name] = append(took[w.name], round.latencies()...)
		r.Notes = append(r.Notes, round.note())
		if w.name == gcOurs {
			r.Failed += round.slow() + round.failed
			if !round.low {
				r.Failed++
			}
		}
	}
	for _, w := range x.ways() {
		r.Rows = append(r.Rows, NewRow(w.name, "ms", took[w.name]))
	}
	r.Score = r.Rows[0].P99 / r.Rows[len(r.Rows)-1].P99
	r.Notes = append(r.Notes, "the creates are registered as spin-ups, which only Holdfast's collector takes into account")
	if x.o.Plot != "" {
		if err := writePlot(x.o.Plot, r.Machine, rounds); err != nil {
			return r, err
		}
	}
	return r, nil
}

// round measures one way, from a full disk to an empty one.
func (x *gcBench) round(ctx context.Context, w way) (gcRound, error) {
	refs, err := x.fill(ctx, x.o.Images)
	if err != nil {
		return gcRound{}, err
	}
	full, err := x.used()
	if err != nil {
		return gcRound{}, err
	}
	// Half the size of the images, so that other programs' writes to the same disk
	// do not matter.
	low := full - int64(x.o.Images)*int64(x.o.Files)*fileSize*4/5
	loading, stop := context.WithCancel(ctx)
	loaded := make(chan []gcSample, 1)
	begin := time.Now()
	go func() { loaded <- x.load(loading, begin) }()
	round := gcRound{name: w.name}
	if w.run != nil {
		select { // in every way the first creates meet an idle engine
		case <-time.After(gcLead):
		case <-ctx.Done():
		}
		round.from = time.Since(begin)
		err = w.run(ctx, refs, low)
		round.to = time.Since(begin)
	}
	if left := x.o.Duration - time.Since(begin); left > 0 && err == nil {
		_ = tasks.Sleep(ctx, left)
	}
	stop()
	round.samples = <-loaded
	if err != nil || ctx.Err() != nil {
		return round, errors.Join(err, ctx.Err())
	}
	for _, s := range round.samples {
		if s.err != nil {
			round.failed++
		}
	}
	used, err := x.used()
	round.low, round.freed = used <= low, full-used
	return round, errors.Join(err, x.empty(ctx))
}

// gcLead is the duration of creates before the collection begins.
const gcLead = 2 * time.Second

// empty removes the images that a way has left.
func (x *gcBench) empty(ctx context.Context) error {
	images, err := x.engine.Images(ctx)
	if err != nil {
		return err
	}
	for _, img := range images {
		if slices.Contains(img.Refs, gcBase) {
			continue // with a digest, too, on the containerd image store
		}
		for _, ref := range img.Refs {
			// Removing the tag also removes the digest reference of the pull.
			if err := x.engine.RemoveImage(ctx, ref); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
				return err
			}
		}
	}
	unix.Sync()
	return nil
}
