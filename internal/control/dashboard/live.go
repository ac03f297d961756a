package dashboard

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/control/api"
	"holdfast/internal/platform/tasks"
)

// Times for keeping pages up to date.
const (
	pingEvery  = 20 * time.Second
	writeLimit = 10 * time.Second // for a browser to read one message
	maxWait    = time.Minute
	// Part of one core that all open pages together may use: the next round begins no
	// sooner than that allows. It is 1/coreParts for each open page.
	coreParts = 100
)

// fragment is a piece of a page as HTML, by the id of the element it is in.
type fragment struct{ id, html string }

// hub renders the fragments of open pages, once for all readers of the same view, and
// notifies the readers of changes.
type hub struct {
	make func(ctx context.Context, v view) ([]fragment, error)

	mu    sync.Mutex
	open  int
	feeds map[string]*feed // by the view's id
	woken chan struct{}    // signals that a first page was opened
}

// feed is one view that is open in a browser.
type feed struct {
	view    view
	readers map[chan struct{}]bool // signalled when there is something new
	pieces  []piece
}

type piece struct {
	fragment
	round int // of the last change
}

func newHub(m func(context.Context, view) ([]fragment, error)) *hub {
	return &hub{make: m, feeds: map[string]*feed{}, woken: make(chan struct{}, 1)}
}

// run renders all open views, round after round.
func (h *hub) run(ctx context.Context) error {
	// A round has its own thread, so that its CPU time can be measured: on a busy host
	// a round takes much longer than its CPU time.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for round := 1; ; round++ {
		before := threadTime()
		n := h.round(ctx, round)
		if n == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.woken:
				continue
			}
		}
		wait := min(max(minEvery, coreParts*(threadTime()-before)/time.Duration(n)), maxWait)
		if tasks.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// threadTime is the CPU time that this thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails only for an invalid clock or address
	return time.Duration(t.Nano())
}

// round renders every view once, and returns the number of open pages.
func (h *hub) round(ctx context.Context, round int) int {
	h.mu.Lock()
	feeds, open := slices.Collect(maps.Values(h.feeds)), h.open
	h.mu.Unlock()
	for _, f := range feeds {
		made, err := h.make(ctx, f.view)
		if err != nil {
			continue // our own template failed: show logs it
		}
		h.mu.Lock()
		f.take(made, round)
		h.mu.Unlock()
	}
	return open
}

// take stores the changed fragments and notifies the readers.
func (f *feed) take(made []fragment, round int) {
	changed := false
	for i, m := range made {
		switch {
		case i >= len(f.pieces):
			f.pieces = append(f.pieces, piece{m, round})
		case f.pieces[i].fragment != m:
			f.pieces[i] = piece{m, round}
		default:
			continue
		}
		changed = true
	}
	if !changed {
		return
	}
	for c := range f.readers {
		select {
		case c <- struct{}{}:
		default: // already signalled
		}
	}
}

// join adds a reader of a view. The error is an *api.Error: too many pages are open.
func (h *hub) join(v view) (f *feed, news chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= maxStreams {
		return nil, nil, &api.Error{Code: api.CodeBusy, Message: fmt.Sprintf("%d pages are already kept up to date", maxStreams)}
	}
	id := v.id()
	f = h.feeds[id]
	if f == nil {
		f = &feed{view: v, readers: map[chan struct{}]bool{}}
		h.feeds[id] = f
	}
	news = make(chan struct{}, 1)
	if len(f.pieces) > 0 {
		news <- struct{}{}
	}
	f.readers[news] = true
	h.open++
	if h.open == 1 {
		select {
		case h.woken <- struct{}{}:
		default:
		}
	}
	return f, news, nil
}

func (h *hub) leave(f *feed, news chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(f.readers, news)
	if len(f.readers) == 0 {
		delete(h.feeds, f.view.id())
	}
	h.open--
}

// since returns the changes after the given round, and the last round of them.
func (h *hub) since(f *feed, round int) (changed []fragment, last int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last = round
	for _, p := range f.pieces {
		if p.round > round {
			changed = append(changed, p.fragment)
			last = max(last, p.round)
		}
	}
	return changed, last
}

// stream sends the changes of a page. A browser that reads slowly misses old states,
// never the newest.
func (d *Dashboard) stream(w http.ResponseWriter, r *http.Request, c api.Caller, p page) error {
	v := view{page: p, query: queryOf(r, p), admin: c.Admin}
	f, news, err := d.hub.join(v)
	if err != nil {
		return err
	}
	defer d.hub.leave(f, news)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	send := func(text string) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(writeLimit))
		_, err := w.Write([]byte(text))
		return err == nil && rc.Flush() == nil
	}
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	round := 0
	for ok := send(": here\n\n"); ok; {
		select {
		case <-r.Context().Done():
			return nil
		case <-ping.C:
			ok = d.hasAccess(r, c) && send(": here\n\n")
		case <-news:
			var changed []fragment
			changed, round = d.hub.since(f, round)
			ok = d.hasAccess(r, c) && (len(changed) == 0 || send(event(changed)))
		}
	}
	return nil
}

// hasAccess reports whether the caller still has access: logins and tokens end.
func (d *Dashboard) hasAccess(r *http.Request, was api.Caller) bool {
	now, err := api.CallerOf(d.o.Access, r)
	return err == nil && now == was
}

// event returns a message with fragments that htmx puts into the page.
func event(changed []fragment) string {
	var b strings.Builder
	for _, f := range changed {
		piece := fmt.Sprintf(`<hx-partial hx-target="#%s" hx-swap="innerMorph">%s</hx-partial>`, f.id, f.html)
		// A CR alone ends a line of an event stream, too (HTML standard, 9.2.6).
		for line := range strings.Lines(strings.ReplaceAll(piece, "\r", "\n")) {
			b.WriteString("data: " + strings.TrimRight(line, "\n") + "\n")
		}
	}
	b.WriteString("\n")
	return b.String()
}
