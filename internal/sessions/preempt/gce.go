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
)

// The keys of Google's metadata server that announce the end of an instance.
// Compute Engine documentation: "Spot VMs", Preemption process; "Query metadata server for
// maintenance event notices". The latter also says that the 60 seconds of warning
// are only given to instances that have asked for maintenance-event before.
const (
	gcePreempted   = "instance/preempted"         // TRUE or FALSE
	gceMaintenance = "instance/maintenance-event" // NONE or what is to happen
)

// How long Google gives, from the same pages: a preempted instance has up to 30
// seconds from the notice on; maintenance-event changes 60 seconds ahead.
const (
	gcePreemptedLead   = 30 * time.Second
	gceMaintenanceLead = 60 * time.Second
)

// gce listens to Google's metadata server with a request per key that waits
// until the key changes. Compute Engine documentation: "View and query VM
// metadata", Query metadata changes (wait_for_change, timeout_sec, last_etag).
type gce struct {
	endpoint string
	wait     time.Duration // of one request, in whole seconds, by the server
	grace    time.Duration // on top of it, until the server counts as hung
	pace     time.Duration // between two answers that say the same
	now      func() time.Time

	mu    sync.Mutex
	heard map[string][]Notice // by key; kept over failures
}

func newGCE(endpoint string) *gce {
	return &gce{
		endpoint: strings.TrimRight(endpoint, "/"),
		wait:     time.Minute,
		grace:    10 * time.Second,
		pace:     time.Second,
		now:      time.Now,
		heard:    make(map[string][]Notice),
	}
}

func (g *gce) Name() string { return "gce" }

func (g *gce) Run(ctx context.Context, stand func(...Notice)) error {
	answered := make(map[string]bool) // in this run
	hear := func(key, value string, at time.Time) error {
		n, err := gceNotice(key, value, at)
		if err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.heard[key] = n
		answered[key] = true
		// Half an answer only counts where it is bad news.
		if len(answered) == 2 || len(n) > 0 {
			stand(slices.Concat(g.heard[gcePreempted], g.heard[gceMaintenance])...)
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, key := range []string{gcePreempted, gceMaintenance} {
		group.Go(func() error { return g.watch(ctx, key, hear) })
	}
	return group.Wait()
}

// watch asks for key again and again; the server answers when it changes. at is
// when it changed, zero for the value that was there already.
func (g *gce) watch(ctx context.Context, key string, hear func(key, value string, at time.Time) error) error {
	client, etag := newClient(), ""
	for {
		value, next, err := g.ask(ctx, client, key, etag)
		if err != nil {
			return err
		}
		var at time.Time
		if etag != "" {
			at = g.now()
		}
		if next != etag {
			if err := hear(key, value, at); err != nil {
				return err
			}
		} else if err := sleep(ctx, g.pace); err != nil { // in case that it does not wait
			return err
		}
		etag = next
	}
}

// ask returns a key's value and etag: at once without a last etag, else when it
// changes or the wait is over.
func (g *gce) ask(ctx context.Context, client *http.Client, key, last string) (value, etag string, err error) {
	if last == "" {
		last = "0" // never an etag, so that the server answers with what is
	}
	query := url.Values{
		"wait_for_change": {"true"},
		"timeout_sec":     {strconv.Itoa(int(g.wait / time.Second))},
		"last_etag":       {last},
	}
	a, err := call(ctx, client, g.wait+g.grace, http.MethodGet, g.endpoint+"/computeMetadata/v1/"+key+"?"+query.Encode(),
		map[string]string{"Metadata-Flavor": "Google"}, "")
	switch {
	case err != nil:
		return "", "", err
	case a.status != http.StatusOK:
		return "", "", fmt.Errorf("%s: status %d", key, a.status)
	case a.header.Get("Metadata-Flavor") != "Google":
		// The same page, on how to tell the server from others.
		return "", "", fmt.Errorf("%s: this is not Google's metadata server", key)
	case a.header.Get("ETag") == "":
		return "", "", fmt.Errorf("%s: the answer has no ETag", key)
	}
	return strings.TrimSpace(string(a.body)), a.header.Get("ETag"), nil
}

// gceEvent is what a value of maintenance-event looks like.
var gceEvent = regexp.MustCompile(`^[A-Z_]{1,64}$`)

// gceNotice is what the value of a key means that it got at that time.
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
	case key == gceMaintenance && gceEvent.MatchString(value):
		// MIGRATE_ON_HOST_MAINTENANCE: the instance moves to another host
		// while it runs. It is slow for a while and keeps everything. A
		// word that we do not know gets the same caution.
		n.Kind, lead = Rebalance, gceMaintenanceLead
	default:
		return nil, fmt.Errorf("%s is %.64q, which means nothing here", key, value)
	}
	if !at.IsZero() {
		n.Deadline = at.Add(lead)
	}
	return []Notice{n}, nil
}
