package preempt

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/tasks"
)

// The keys of Google's metadata server that announce the end of an instance.
// Compute Engine documentation: "Spot VMs", Preemption process; "Query metadata server for
// maintenance event notices". According to the latter, only
// instances that have read maintenance-event before get the 60 seconds of warning.
const (
	gcePreempted   = "instance/preempted"         // TRUE or FALSE
	gceMaintenance = "instance/maintenance-event" // NONE, or the event
)

// The lead times of the notices, from the same pages: a preempted instance has up
// to 30 seconds after the notice; maintenance-event changes 60 seconds ahead.
const (
	gcePreemptedLead   = 30 * time.Second
	gceMaintenanceLead = 60 * time.Second
)

// gce reads Google's metadata server with one request per key, which waits until
// the key changes. Compute Engine documentation: "View and query VM
// metadata", Query metadata changes (wait_for_change, timeout_sec, last_etag).
type gce struct {
	endpoint string
	wait     time.Duration // of the server, in one request; whole seconds
	grace    time.Duration // added to wait; then the server counts as hung
	pause    time.Duration // between two answers with the same value
	now      func() time.Time

	mu   sync.Mutex
	last map[string][]Notice // by key; kept across failures
}

func newGCE(endpoint string) *gce {
	return &gce{
		endpoint: strings.TrimRight(endpoint, "/"),
		wait:     time.Minute,
		grace:    10 * time.Second,
		pause:    time.Second,
		now:      time.Now,
		last:     make(map[string][]Notice),
	}
}

func (g *gce) Name() string { return "gce" }

func (g *gce) Run(ctx context.Context, report func(...Notice)) error {
	answered := make(map[string]bool) // in this run
	receive := func(key, value string, at time.Time) error {
		n, err := gceNotice(key, value, at)
		if err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.last[key] = n
		answered[key] = true
		// One key is enough for a notice. The absence of notices needs both keys.
		if len(answered) == 2 || len(n) > 0 {
			report(slices.Concat(g.last[gcePreempted], g.last[gceMaintenance])...)
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, key := range []string{gcePreempted, gceMaintenance} {
		group.Go(func() error { return g.watch(ctx, key, receive) })
	}
	return group.Wait()
}

// watch reads key repeatedly; the server answers when the key changes. at is the
// time of the change, or zero for the first value.
func (g *gce) watch(ctx context.Context, key string, receive func(key, value string, at time.Time) error) error {
	etag := ""
	for {
		value, next, err := g.ask(ctx, key, etag)
		if err != nil {
			return err
		}
		var at time.Time
		if etag != "" {
			at = g.now()
		}
		if next != etag {
			if err := receive(key, value, at); err != nil {
				return err
			}
		} else if err := tasks.Sleep(ctx, g.pause); err != nil { // the server may not wait
			return err
		}
		etag = next
	}
}

// ask returns a key's value and etag: at once if last is empty, else when the key
// changes or the wait is over.
func (g *gce) ask(ctx context.Context, key, last string) (value, etag string, err error) {
	if last == "" {
		last = "0" // never a valid etag: the server answers with the current value
	}
	query := url.Values{
		"wait_for_change": {"true"},
		"timeout_sec":     {strconv.Itoa(int(g.wait / time.Second))},
		"last_etag":       {last},
	}
	a, err := call(ctx, g.wait+g.grace, http.MethodGet, g.endpoint+"/computeMetadata/v1/"+key+"?"+query.Encode(),
		map[string]string{"Metadata-Flavor": "Google"}, "")
	switch {
	case err != nil:
		return "", "", err
	case a.status != http.StatusOK:
		return "", "", fmt.Errorf("%s: status %d", key, a.status)
	case a.header.Get("Metadata-Flavor") != "Google":
		// The same page describes this header as the way to recognize the server.
		return "", "", fmt.Errorf("%s: this is not Google's metadata server", key)
	case a.header.Get("ETag") == "":
		return "", "", fmt.Errorf("%s: the answer has no ETag", key)
	}
	return strings.TrimSpace(string(a.body)), a.header.Get("ETag"), nil
}

// gceEvent is the format of a value of maintenance-event.
var gceEvent = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z_]{1,64}$`) })

// gceNotice converts the value that a key got at that time.
func gceNotice(key, value string, at time.Time) ([]Notice, error) {
	n := Notice{ID: key, Reason: key + " is " + value}
	lead := gcePreemptedLead
	switch {
	case key == gcePreempted && value == "TRUE":
		n.Kind = Terminate
	case key == gcePreempted && value == "FALSE", key == gceMaintenance && value == "NONE":
		return nil, nil
	case key == gceMaintenance && value == "TERMINATE_ON_HOST_MAINTENANCE":
		n.Kind, lead = Terminate, gceMaintenanceLead
	case key == gceMaintenance && gceEvent().MatchString(value):
		// MIGRATE_ON_HOST_MAINTENANCE is a live migration: the instance is slow
		// for a while and loses nothing. Unknown events are treated alike.
		n.Kind, lead = Rebalance, gceMaintenanceLead
	default:
		return nil, fmt.Errorf("%s is %.64q, which is not a known value", key, value)
	}
	if !at.IsZero() {
		n.Deadline = at.Add(lead)
	}
	return []Notice{n}, nil
}
