package puller

import (
	"context"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/hosts/spinup"
)

// atOnce limits concurrent pulls. The engine fetches only a few layers at a time
// (three, dockerd's --max-concurrent-downloads), so more would only wait.
const atOnce = 16

// Watch receives the progress of several pulls. Its functions may be nil. They
// are called from several goroutines, for one image by one at a time.
type Watch struct {
	// Progress receives Pull's progress for the i-th request. For equal requests it
	// is called for the first.
	Progress func(i int, p spinup.Pull)
	// Done is called once per request when its image is present or its pull has
	// failed, while others may still run.
	Done func(i int, r Result)
}

// All pulls several images at the same time, and each image once. The results are in
// the order of the requests; Of identifies equal requests. All returns when all pulls
// have ended. A pull that fails does not affect the others.
//
// If several images share a layer with all layers below it, the engine fetches the
// layer once. It counts for one of the images.
func (p *Puller) All(ctx context.Context, list []Request, w Watch) []Result {
	of := same(list)
	results := make([]Result, len(list))
	var pulling errgroup.Group
	pulling.SetLimit(atOnce)
	for i, q := range list {
		if of[i] != i {
			continue
		}
		pulling.Go(func() error {
			var progress func(spinup.Pull)
			if w.Progress != nil {
				progress = func(now spinup.Pull) { w.Progress(i, now) }
			}
			r := Result{Of: i}
			r.Record, r.Err = p.Pull(ctx, q, progress)
			for j := i; j < len(list); j++ {
				if of[j] != i {
					continue
				}
				results[j] = r
				if w.Done != nil {
					w.Done(j, r)
				}
			}
			return nil
		})
	}
	_ = pulling.Wait() // the functions return no errors
	return results
}

// same gives each request the index of the first equal request.
func same(list []Request) []int {
	type wanted struct{ image, platform string }
	first := map[wanted]int{}
	of := make([]int, len(list))
	for i, q := range list {
		w := wanted{FullName(q.Image), q.Platform}
		if _, ok := first[w]; !ok {
			first[w] = i
		}
		of[i] = first[w]
	}
	return of
}

// FullName returns an image's name with registry and tag, as in
// index.docker.io/library/busybox:latest. An invalid name is returned unchanged.
func FullName(image string) string {
	ref, err := name.ParseReference(image)
	if err != nil {
		return image
	}
	return ref.Name()
}
