package preempt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Azure's scheduled events. Azure documentation: "Scheduled Events for Linux
// VMs": header, version, fields, the minimum notice of each type, the interval of
// one second, the first answer, which may take two minutes, and StartRequests. The
// machine's name is described in "Azure Instance Metadata Service".
const (
	azureEvents = "/metadata/scheduledevents?api-version=2020-07-01"
	azureName   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

	azurePoll  = time.Second
	azureFirst = 130 * time.Second // for an answer to the first request

	// azureLead is the longest of the usual notices: 15 minutes, for Reboot and
	// at most for Terminate. An event that is further away, such as a move off
	// hardware that is expected to fail, is days ahead. Until it is within
	// azureLead, the node accepts no new sessions and keeps the others.
	azureLead = 15 * time.Minute
)

// azure polls Azure's metadata service.
type azure struct {
	endpoint    string
	acknowledge bool // approve an event when this host is drained
	poll        time.Duration
	first       time.Duration // of the first request for events
	timeout     time.Duration // of any other
	now         func() time.Time
}

func newAzure(endpoint string, acknowledge bool) *azure {
	return &azure{
		endpoint:    strings.TrimRight(endpoint, "/"),
		acknowledge: acknowledge,
		poll:        azurePoll,
		first:       azureFirst,
		timeout:     5 * time.Second,
		now:         time.Now,
	}
}

func (a *azure) Name() string { return "azure" }

func (a *azure) Run(ctx context.Context, report func(...Notice)) error {
	name, err := a.request(ctx, a.timeout, http.MethodGet, azureName, "")
	if err != nil {
		return fmt.Errorf("ask for this machine's name: %w", err)
	}
	self := strings.TrimSpace(string(name))
	if self == "" || len(self) > 256 {
		return fmt.Errorf("ask for this machine's name: the answer is not a name")
	}
	timeout := a.first
	return repeat(ctx, a.poll, report, func() ([]Notice, error) {
		now, err := a.notices(ctx, timeout, self)
		timeout = a.timeout
		return now, err
	})
}

// azureEvent is one scheduled event.
type azureEvent struct {
	ID        string   `json:"EventId"`
	Type      string   `json:"EventType"`   // Freeze, Reboot, Redeploy, Preempt, Terminate
	Status    string   `json:"EventStatus"` // Scheduled or Started
	Resources []string // the affected machines; this one may not be among them
	NotBefore string   // "Mon, 19 Sep 2016 18:29:47 GMT"; empty once it has started
}

func (a *azure) notices(ctx context.Context, timeout time.Duration, self string) ([]Notice, error) {
	body, err := a.request(ctx, timeout, http.MethodGet, azureEvents, "")
	if err != nil {
		return nil, fmt.Errorf("ask for scheduled events: %w", err)
	}
	var doc struct {
		Events *[]azureEvent // always present, possibly empty
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("scheduled events: %w", err)
	}
	if doc.Events == nil {
		return nil, fmt.Errorf("scheduled events: no Events in the answer")
	}
	var now []Notice
	for _, e := range *doc.Events {
		if slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, self) }) {
			now = append(now, a.notice(e))
		}
	}
	return now, nil
}

// notice converts an event of this machine.
func (a *azure) notice(e azureEvent) Notice {
	// An event without a valid time may begin now.
	start, err := time.Parse(time.RFC1123, e.NotBefore)
	if err != nil {
		start = time.Time{}
	}
	n := Notice{
		Kind:     Rebalance, // Freeze, a pause of seconds that loses nothing, and unknown types
		Reason:   fmt.Sprintf("%s is %s", e.Type, strings.ToLower(e.Status)),
		Deadline: start,
		ID:       e.ID,
	}
	switch e.Type {
	case "Preempt", "Terminate", "Reboot", "Redeploy":
		if start.Sub(a.now()) <= azureLead {
			n.Kind = Terminate
		}
	}
	if a.acknowledge && n.Kind == Terminate {
		n.Done = func(ctx context.Context) error { return a.approve(ctx, e.ID) }
	}
	return n
}

// approve lets an event begin before its time, for all affected machines.
func (a *azure) approve(ctx context.Context, id string) error {
	type start struct{ EventId string } //nolint:revive // Azure's spelling
	body, err := json.Marshal(struct{ StartRequests []start }{[]start{{id}}})
	if err != nil {
		return err
	}
	if _, err := a.request(ctx, a.timeout, http.MethodPost, azureEvents, string(body)); err != nil {
		return fmt.Errorf("approve event %s: %w", id, err)
	}
	return nil
}

func (a *azure) request(ctx context.Context, timeout time.Duration, method, path, body string) ([]byte, error) {
	header := map[string]string{"Metadata": "true"}
	if body != "" {
		header["Content-Type"] = "application/json"
	}
	got, err := call(ctx, timeout, method, a.endpoint+path, header, body)
	if err != nil {
		return nil, err
	}
	if got.status != http.StatusOK {
		return nil, fmt.Errorf("status %d", got.status)
	}
	return got.body, nil
}
