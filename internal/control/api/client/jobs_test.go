package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/job"
)

// heard is what a stream has received, by run.
type heard struct {
	out    map[int]*bytes.Buffer
	events []api.JobEvent
	on     func(api.JobEvent)
}

func (h *heard) stream() api.JobStream {
	h.out = map[int]*bytes.Buffer{}
	return api.JobStream{
		Output: func(run int) (stdout, stderr io.Writer) {
			if h.out[run] == nil {
				h.out[run] = &bytes.Buffer{}
			}
			return h.out[run], h.out[run]
		},
		Event: func(ev api.JobEvent) {
			h.events = append(h.events, ev)
			if h.on != nil {
				h.on(ev)
			}
		},
	}
}

func someJob(image string) api.JobRequest {
	return api.JobRequest{ID: "0123456789ab", Runs: []int{0, 2}, Job: job.Job{
		Images: []job.Image{{Image: image}}, Steps: []job.Step{{Run: "true"}}, Parallelism: 3,
	}}
}

// A part of a job ends by itself, when its caller stops it, or with the agent.
func TestRunJob(t *testing.T) {
	c, endAgent := agent(t, started(t))
	var h heard
	if err := c.RunJob(within(t), "n1", someJob("app"), h.stream()); err != nil {
		t.Fatal(err)
	}
	if len(h.events) != 4 || h.events[3].Ended == nil || h.events[3].Ended.Index != 2 || len(h.out) != 2 || h.out[2].String() != "out 2\nerr 2\n" {
		t.Errorf("%+v, %v", h.events, h.out)
	}

	ctx, stop := context.WithCancel(within(t))
	h = heard{on: func(api.JobEvent) { stop() }}
	if err := c.RunJob(ctx, "n1", someJob("wait"), h.stream()); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}

	h = heard{on: func(ev api.JobEvent) {
		if ev.Progress.Run == 2 {
			go endAgent()
		}
	}}
	err := c.RunJob(within(t), "n1", someJob("wait"), h.stream())
	if wire, ok := errors.AsType[*api.Error](err); !ok || wire.Code != api.CodeNodeDown || !strings.Contains(wire.Message, "the agent of node n1 ended") {
		t.Errorf("with the agent: %v", err)
	}
	if err := c.RunJob(within(t), "n1", someJob("app"), h.stream()); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("without an agent: %v", err)
	}
}

// Jobs that a node must not run are refused before they begin.
func TestBadJobs(t *testing.T) {
	c, _ := agent(t, started(t))
	for what, change := range map[string]func(*api.JobRequest){
		"an id of another form": func(q *api.JobRequest) { q.ID = "../../0123456789ab" },
		"no image":              func(q *api.JobRequest) { q.Job.Images = nil },
		"a path of the host": func(q *api.JobRequest) {
			q.Job.Images[0].Mounts = []job.Mount{{Type: "bind", Source: "/", Target: "/host"}}
		},
		"no run":            func(q *api.JobRequest) { q.Runs = nil },
		"a run twice":       func(q *api.JobRequest) { q.Runs = []int{1, 1} },
		"a run too many":    func(q *api.JobRequest) { q.Runs = []int{3} },
		"a run below 0":     func(q *api.JobRequest) { q.Runs = []int{-1} },
		"too many at once":  func(q *api.JobRequest) { q.Job.Parallelism = job.MaxParallelism + 1 },
		"a large job":       func(q *api.JobRequest) { q.Job.Steps[0].Run = strings.Repeat("x", 65<<10) },
		"another node's":    nil,
		"no limit of runs":  func(q *api.JobRequest) { q.Runs = slices.Repeat([]int{0}, 1000) },
		"a reserved name":   func(q *api.JobRequest) { q.Job.Images[0].Env = map[string]string{"HOLDFAST_X": "1"} },
		"an unknown policy": func(q *api.JobRequest) { q.Job.Pull = "perhaps" },
	} {
		q, node := someJob("app"), holdfast.NodeID("n1")
		if change == nil {
			node = "n2"
		} else {
			change(&q)
		}
		var h heard
		if err := c.RunJob(within(t), node, q, h.stream()); err == nil || len(h.events) > 0 {
			t.Errorf("%s: %v, %d events", what, err, len(h.events))
		}
	}
}
