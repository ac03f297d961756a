package cli

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/docker/go-units"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
)

// sayEvery is the interval of progress lines without a terminal.
const sayEvery = 10 * time.Second

// pullProgress shows the progress of pulls on stderr: on a terminal as a picture that is
// redrawn, elsewhere as a line for each event.
type pullProgress struct {
	*picture           // nil: not a terminal
	lines    io.Writer // nil: no lines

	mu   sync.Mutex
	rows []*pullRow
	said []map[string]spinup.State // of each image's layers, in lines
	next []time.Time               // time of the next progress line of an image
}

// pulls begins to show the progress. The caller must close it before it prints anything
// else.
func (u *ui) pulls(images []string, quiet bool) *pullProgress {
	b := &pullProgress{}
	now := time.Now()
	for _, image := range images {
		b.rows = append(b.rows, &pullRow{image: image, now: spinup.Pull{Image: image, Begun: now}})
		b.said = append(b.said, map[string]spinup.State{})
		b.next = append(b.next, now.Add(sayEvery))
	}
	if u.json || quiet {
		return b
	}
	f, tty := terminal(u.err)
	if !tty {
		b.lines = u.err
		for _, image := range images {
			fmt.Fprintf(u.err, "%s: pulling…\n", clean(image))
		}
		return b
	}
	b.picture = newPicture(f, b.frame)
	return b
}

// progress updates the figures of the i-th image.
func (b *pullProgress) progress(i int, p spinup.Pull) {
	if b.lines == nil && b.picture == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.rows[i].take(now, p)
	if b.lines == nil {
		return
	}
	for _, l := range p.Layers {
		if b.said[i][l.ID] != l.State {
			b.said[i][l.ID] = l.State
			b.sayLayer(i, l)
		}
	}
	if now.After(b.next[i]) {
		b.next[i] = now.Add(sayEvery)
		fmt.Fprintln(b.lines, b.rows[i].head(math.MaxInt32, 0))
	}
}

// sayLayer prints a line for the end of a layer, and for a failure.
func (b *pullProgress) sayLayer(i int, l spinup.Layer) {
	what := ""
	switch l.State {
	case spinup.Retrying:
		what = fmt.Sprintf("failed, will be downloaded again (retry %d)", l.Retries)
	case spinup.Present:
		what = "already on this host"
	case spinup.Complete:
		what = "done"
		if l.Size > 0 {
			what += ", " + units.BytesSize(float64(l.Size))
		}
	default:
		return
	}
	fmt.Fprintf(b.lines, "%s: layer %s: %s\n", clean(b.rows[i].image), clean(l.ID), what)
}

// done sets the result of the i-th image's pull.
func (b *pullProgress) done(i int, r puller.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[i]
	switch {
	case r.Err != nil:
		row.ended = "failed"
	case r.Record.Pull.Cached:
		row.ended = "was in the cache"
	default:
		row.ended = "done in " + tenths(time.Duration(r.Record.Took))
	}
}

func (b *pullProgress) frame(width, height int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return pullFrame(b.rows, width, height)
}
