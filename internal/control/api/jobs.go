package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"

	"holdfast"
	"holdfast/internal/hosts/job"
	"holdfast/internal/platform/frame"
)

// Jobs runs jobs on the nodes of the fleet.
type Jobs interface {
	// PlaceJob chooses a node for each run of a job. holdfast.ErrBusy: no node takes one.
	// holdfast.ErrNotFound: a named node is not up, or no node has the images.
	PlaceJob(ctx context.Context, q PlaceJobRequest) ([]holdfast.NodeID, error)

	// EstimatePull estimates how long a pull of images would take on this node.
	EstimatePull(ctx context.Context, q JobImages) (PullEstimate, error)

	// RunJob runs a part of a job on this node. When it returns, everything that it made
	// is removed, even if ctx is done. A failed step is not an error. holdfast.ErrBusy,
	// holdfast.ErrDraining.
	RunJob(ctx context.Context, q JobRequest, s JobStream) error
}

// JobImages are the images of a job.
type JobImages struct {
	Images   []string `json:"images"` // 1 to job.MaxImages
	Platform string   `json:"platform,omitempty"`
	// Pull is the job's policy. With always no node has an advantage.
	Pull job.Policy `json:"pull,omitempty"`
}

// PlaceJobRequest asks for a node for each run of a job.
type PlaceJobRequest struct {
	JobImages
	Runs int `json:"runs"` // 1 to job.MaxParallelism
	// Nodes are the nodes that may run it; absent: all.
	Nodes []holdfast.NodeID `json:"nodes,omitempty"`
}

// JobPlaces is the answer: the node of each run, by the run's index.
type JobPlaces struct {
	Nodes []holdfast.NodeID `json:"nodes"`
}

// PullEstimate is how long a pull of images would take on a node.
type PullEstimate struct {
	Pull    holdfast.Millis `json:"pull_ms"` // 0 if the node has the images
	Missing []string        `json:"missing"` // images that the node does not have
}

// JobRequest opens the stream of a job's part; package frame describes what follows it.
type JobRequest struct {
	ID  string  `json:"id"`  // of the whole job, 12 hexadecimal digits
	Job job.Job `json:"job"` // its parallelism is that of the whole job
	// Runs are the indices of the runs that the node runs, in ascending order.
	Runs []int `json:"runs"`
}

// JobEvent is a line of a job's stream. One field is set.
type JobEvent struct {
	Progress *job.Event  `json:"progress,omitempty"`
	Started  *job.Spinup `json:"started,omitempty"` // the start of one container, which may have failed
	Ended    *job.Run    `json:"ended,omitempty"`   // a run that was run to its end
}

// JobStream receives what a part of a job does. Calls of Event come one at a time.
type JobStream struct {
	Output func(run int) (stdout, stderr io.Writer)
	Event  func(JobEvent)
}

type jobHandlers struct {
	jobs      Jobs
	node      holdfast.NodeID
	pingEvery time.Duration // 0 is pingEvery
}

func jobRoutes(j Jobs, node holdfast.NodeID, pingEvery time.Duration) []route {
	h := jobHandlers{j, node, pingEvery}
	return []route{
		{method: "POST", path: "/v1/jobs/place", id: "placeJob", summary: "Choose a node for each run of a job, by load and by the images that nodes have.",
			access: forAdmin, limit: limitAsk, request: PlaceJobRequest{}, answer: JobPlaces{}, handle: doing(h.place)},
		{method: "POST", path: "/v1/nodes/{node}/pull-estimate", id: "estimatePull", summary: "Estimate how long a pull of images would take on the given node.",
			access: forAdmin, at: atItsNode, limit: limitAsk, request: JobImages{}, answer: PullEstimate{}, handle: doing(h.estimate)},
		{method: "POST", path: "/v1/nodes/{node}/jobs", id: "runJob", summary: "Run a part of a job on the given node, over an upgrade to holdfast-exec/1. It ends, and everything is removed, when the caller disconnects.",
			access: forAdmin, at: atItsNode, stream: true, request: JobRequest{}, status: http.StatusSwitchingProtocols, handle: h.run},
	}
}

// check checks the images before a node looks for them.
func (q JobImages) check(ctx context.Context) error {
	note(ctx, "images", bounded(strings.Join(q.Images, " ")))
	switch {
	case len(q.Images) == 0 || len(q.Images) > job.MaxImages || slices.Contains(q.Images, ""):
		return badRequest("images: 1 to %d names are needed", job.MaxImages)
	case !slices.Contains([]job.Policy{"", job.PullMissing, job.PullAlways, job.PullNever}, q.Pull):
		return badRequest("pull: %q is not one of missing, always, never", bounded(string(q.Pull)))
	}
	for _, image := range q.Images {
		if _, err := reference.ParseAnyReference(image); err != nil {
			return badRequest("images: %q is not the name of an image", bounded(image))
		}
	}
	return nil
}

func (h jobHandlers) place(r *http.Request, q PlaceJobRequest) (JobPlaces, error) {
	if err := q.check(r.Context()); err != nil {
		return JobPlaces{}, err
	}
	if q.Runs < 1 || q.Runs > job.MaxParallelism {
		return JobPlaces{}, badRequest("runs: %d is not between 1 and %d", q.Runs, job.MaxParallelism)
	}
	nodes, err := h.jobs.PlaceJob(r.Context(), q)
	return JobPlaces{notNil(nodes)}, err
}

func (h jobHandlers) estimate(r *http.Request, q JobImages) (PullEstimate, error) {
	if err := q.check(r.Context()); err != nil {
		return PullEstimate{}, err
	}
	e, err := h.jobs.EstimatePull(r.Context(), q)
	e.Missing = notNil(e.Missing)
	return e, err
}

// jobID is the form of a job's id, as job.NewID makes it.
var jobID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{12}$`) })

// jobRequest reads a part of a job, and notes it for the audit log.
func jobRequest(w http.ResponseWriter, r *http.Request) (q JobRequest, err error) {
	if err := decode(w, r, &q); err != nil {
		return q, err
	}
	if !jobID().MatchString(q.ID) {
		return q, badRequest("id: %q is not 12 hexadecimal digits", bounded(q.ID))
	}
	if q.Job, err = q.Job.Complete(); err != nil {
		return q, &Error{Code: CodeBadRequest, Message: "job: " + err.Error(), Advice: holdfast.HintOf(err)}
	}
	if p := q.Job.HostPath(); p != "" {
		return q, &Error{Code: CodeBadRequest, Message: "job: the mount of " + bounded(p) + " is of a path of one host", Advice: "use a volume, which each node has for itself"}
	}
	for i, run := range q.Runs {
		if run < 0 || run >= q.Job.Parallelism || i > 0 && run <= q.Runs[i-1] {
			return q, badRequest("runs: they must ascend, from 0 to %d", q.Job.Parallelism-1)
		}
	}
	if len(q.Runs) == 0 {
		return q, badRequest("runs: the list is empty")
	}
	note(r.Context(), "job", q.ID)
	note(r.Context(), "image", bounded(q.Job.Images[0].Image))
	return q, nil
}

// run checks the request like any other, then takes over the connection.
func (h jobHandlers) run(w http.ResponseWriter, r *http.Request) error {
	q, err := jobRequest(w, r)
	if err != nil {
		return err
	}
	if err := upgrades(r); err != nil {
		return err
	}
	return switchTo(w, func(conn net.Conn, in *bufio.Reader) error { return h.serve(r.Context(), conn, in, q) })
}

// serve runs the job until it has ended, the client disconnects or stops it, or the agent
// ends. It returns when everything of the job is removed.
func (h jobHandlers) serve(agent context.Context, conn net.Conn, in *bufio.Reader, q JobRequest) error {
	ctx, stop := context.WithCancel(agent)
	defer stop()
	// A client that does not read must not delay the removal.
	unblock := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(lingerLimit)) })
	defer unblock()
	f := frame.NewConn(in, conn)
	var reading, pinging sync.WaitGroup
	reading.Go(func() {
		defer stop()
		for {
			kind, p, err := f.Read()
			if err != nil {
				return
			}
			if kind == frame.Stdin && len(p) == 0 {
				stop()
			}
		}
	})
	pinging.Go(func() { f.KeepAlive(ctx, cmp.Or(h.pingEvery, pingEvery), stop) })

	err := h.jobs.RunJob(ctx, q, streamTo(f))
	if agent.Err() != nil {
		err = errors.Join(&Error{Code: CodeNodeDown, Message: "the agent of node " + string(h.node) + " ended"}, err)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(lingerLimit))
	exit := ExecExit{Error: ErrorOf(err)}
	if c, ok := errors.AsType[*job.ContainerError](err); ok {
		exit.Error.Log = c.Log
	}
	_ = f.WriteJSON(frame.Exit, exit) // the client may be gone
	// As in serveExec.
	_ = conn.SetReadDeadline(time.Now().Add(lingerLimit))
	reading.Wait()
	stop()
	pinging.Wait()
	return err
}

// streamTo returns a stream that sends frames. A failed write means that the client is
// gone, which its reader sees.
func streamTo(f *frame.Conn) JobStream {
	return JobStream{
		Output: func(run int) (stdout, stderr io.Writer) {
			return f.Tagged(frame.Stdout, uint16(run)), f.Tagged(frame.Stderr, uint16(run))
		},
		Event: func(ev JobEvent) {
			if b, err := json.Marshal(ev); err == nil {
				_ = f.Write(frame.Event, append(b, '\n'))
			}
		},
	}
}
