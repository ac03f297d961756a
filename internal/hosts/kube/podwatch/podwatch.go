// Package podwatch records how the containers of a node's pods came up. It polls the
// node's container runtime every few seconds, and queries each container once: the
// runtime keeps the times, so the watcher does not need to receive events. The phases
// of a spin-up:
//
//   - begin: when the kubelet received the pod, from the annotation of the pod's
//     sandbox. For the second container and all later ones, it is the start of the
//     container before, or its end if that is an init container.
//   - start: from the runtime's time of creation, which it sets when the container is
//     complete, to its time of start.
//   - create: from the end of the step before to the time of creation, if the image
//     was present. Between two containers that run, this time would include waits of
//     the kubelet (a postStart hook, a startup probe), so the runtime alone does not
//     show the create phase of the second one.
//   - pull: the runtime has no time of it. If the image arrived between two polls,
//     there was a pull, and its time includes the create phase.
//
// With a Cluster, the watcher sends two queries about each pod, some time after the
// pod's start. The kubelet's events "Pulled" have the time of the pull and its bytes,
// or say that the image was present. The pod's status has the time of readiness, which
// counts for containers with a readiness or startup probe. Both queries are bounded in
// number.
//
// If a pod has a sandbox and no container for minutes, because a pull hangs or is
// refused, the watcher records a failed spin-up. If the container comes later, it is
// another spin-up.
//
// A restarted container is not a spin-up. The watcher does not see a pod that exists
// only between two polls.
package podwatch

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/tasks"
)

// Times of polls and queries.
const (
	lookEvery = 10 * time.Second
	settled   = 20 * time.Second // after a start: most are ready by then
	secondAsk = 2 * time.Minute
	// readyWithin is how long after its start a container may be ready.
	readyWithin = 10 * time.Minute
	// createdWithin is how long a container may wait for its start.
	createdWithin = 10 * time.Minute
	// stuckAfter is how long a pod may have a sandbox and no container: then it
	// waits for an image. The limit is a judgement: 5 GB take that long at 17
	// MB/s.
	stuckAfter = 5 * time.Minute
	// past is the maximum age of a container that existed before the watcher
	// started.
	past = time.Hour
	// Queries to the API server: a node with fast pod turnover must not exceed
	// its share of 0.02 queries a second.
	askEvery = 200 * time.Second
	askBurst = 20
	// maxPending limits the containers that wait for an answer.
	maxPending = 1024
	callLimit  = 30 * time.Second
)

// Config identifies the node and the receiver of records.
type Config struct {
	Node   string
	Kernel string
	// Known are the ids of containers that are already recorded.
	Known []string
	// Cluster is nil if the API server must not be queried.
	Cluster *kube.Client
	// Record takes a finished spin-up. Run's goroutine calls it; it must return
	// soon.
	Record func(spinup.Record)
	Log    *slog.Logger
	Every  time.Duration // between two polls; 0: ten seconds
	Settle time.Duration // from a start until the query to the cluster; 0: twenty seconds
	Stuck  time.Duration // maximum time without a container; 0: five minutes
}

// Watcher records. Run may be called once.
type Watcher struct {
	runtime *cri.Runtime
	conf    Config
	asks    *rate.Limiter

	cohort  spinup.Cohort
	looked  time.Time          // start of the last poll; zero before the first
	arrived map[string]arrival // images, by id
	done    map[string]bool    // containers that need no further action
	status  map[string]cri.Container
	pending map[string][]*came // by the pod's uid
	late    map[string]bool    // pods without a container that are already recorded, by uid
	failing bool
	denied  bool // the API server denies access
}

// arrival is the pair of polls between which an image arrived.
type arrival struct {
	absent time.Time // the last poll without it; zero: none
	seen   time.Time // the first poll with it
}

// New returns an idle Watcher.
func New(r *cri.Runtime, c Config) *Watcher {
	c.Every = cmp.Or(c.Every, lookEvery)
	c.Settle = cmp.Or(c.Settle, settled)
	c.Stuck = cmp.Or(c.Stuck, stuckAfter)
	w := &Watcher{
		runtime: r, conf: c, asks: rate.NewLimiter(rate.Every(askEvery), askBurst),
		arrived: map[string]arrival{}, done: map[string]bool{}, status: map[string]cri.Container{}, pending: map[string][]*came{},
	}
	for _, id := range c.Known {
		w.done[id] = true
	}
	return w
}

// Run records until ctx is done. Spin-ups that then still wait for an answer are
// recorded without it.
func (w *Watcher) Run(ctx context.Context) error {
	err := tasks.Every(ctx, w.conf.Every, func() {
		w.say(w.look(ctx))
		w.ask(ctx, time.Now())
	})
	for _, list := range w.pending {
		w.record(list)
	}
	return err
}

// say logs that the runtime starts or stops failing.
func (w *Watcher) say(err error) {
	switch {
	case err != nil && !w.failing:
		w.conf.Log.Warn("spin-ups of pods: the container runtime does not answer (will be asked again)", "err", err)
	case err == nil && w.failing:
		w.conf.Log.Info("spin-ups of pods: the container runtime answers again")
	}
	w.failing = err != nil
}

// look polls the runtime for new containers.
func (w *Watcher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	begin := time.Now()
	if w.looked.IsZero() || w.failing { // it may have been replaced
		version, err := w.runtime.Version(ctx)
		if err != nil {
			return err
		}
		w.cohort = spinup.Cohort{Host: w.conf.Node, Engine: version, ImageStore: strings.Fields(version + " ?")[0], Kernel: w.conf.Kernel}
	}
	images, err := w.runtime.Images(ctx)
	if err != nil {
		return err
	}
	boxes, containers, err := w.runtime.Pods(ctx)
	if err != nil {
		return err
	}
	w.imagesAt(begin, images)
	w.forget(containers)
	pods := map[string]cri.Sandbox{}
	for _, b := range boxes {
		pods[b.ID] = b
	}
	for _, c := range containers {
		if box, ok := pods[c.Sandbox]; ok && !w.done[c.ID] {
			w.container(ctx, box, c, containers, begin)
		}
	}
	w.stuck(ctx, boxes, containers, begin)
	w.looked = begin
	return ctx.Err()
}

// imagesAt records the images present at a poll that started at begin.
func (w *Watcher) imagesAt(begin time.Time, images map[string]int64) {
	for id := range images {
		if _, ok := w.arrived[id]; !ok {
			w.arrived[id] = arrival{absent: w.looked, seen: begin}
		}
	}
	maps.DeleteFunc(w.arrived, func(id string, _ arrival) bool { _, there := images[id]; return !there })
}

// forget drops containers that the runtime no longer lists.
func (w *Watcher) forget(containers []cri.Container) {
	there := make(map[string]bool, len(containers))
	for _, c := range containers {
		there[c.ID] = true
	}
	maps.DeleteFunc(w.done, func(id string, _ bool) bool { return !there[id] })
	maps.DeleteFunc(w.status, func(id string, _ cri.Container) bool { return !there[id] })
}

// container examines a new container.
func (w *Watcher) container(ctx context.Context, box cri.Sandbox, c cri.Container, all []cri.Container, now time.Time) {
	switch {
	case c.Attempt > 0, w.looked.IsZero() && now.Sub(c.Created) > past:
		w.done[c.ID] = true
		return
	case c.State == "created":
		w.done[c.ID] = now.Sub(c.Created) > createdWithin
		return
	}
	s, err := w.known(ctx, c)
	if err != nil {
		return // it is examined again unless it is gone by then
	}
	before, running := w.before(ctx, box, c, all)
	w.done[c.ID] = true
	up := newCame(box, s, before, running, w.cohort)
	up.image(w.arrived[c.ImageID])
	if w.conf.Cluster == nil || w.denied || up.rec.Outcome != spinup.OK || w.waiting() >= maxPending {
		w.record([]*came{up})
		return
	}
	w.pending[box.UID] = append(w.pending[box.UID], up)
}

func (w *Watcher) waiting() (n int) {
	for _, list := range w.pending {
		n += len(list)
	}
	return n
}

// known returns a container's status. It is cached once the needed fields no
// longer change.
func (w *Watcher) known(ctx context.Context, c cri.Container) (cri.Container, error) {
	if s, ok := w.status[c.ID]; ok && (!s.Ended.IsZero() || c.State == "running") {
		return s, nil
	}
	s, err := w.runtime.Status(ctx, c.ID)
	if err != nil {
		return s, err
	}
	w.status[c.ID] = s
	return s, nil
}

// before returns when the step before a container's ended, and whether that step
// was the start of a container that still ran.
func (w *Watcher) before(ctx context.Context, box cri.Sandbox, c cri.Container, all []cri.Container) (end time.Time, running bool) {
	end = box.Created
	for _, o := range all {
		if o.Sandbox != c.Sandbox || o.ID == c.ID || !o.Created.Before(c.Created) {
			continue
		}
		s, err := w.known(ctx, o)
		if err != nil {
			continue
		}
		at, on := s.Started, true
		if !s.Ended.IsZero() && !s.Ended.After(c.Created) {
			at, on = s.Ended, false
		}
		if at.After(end) && !at.After(c.Created) {
			end, running = at, on
		}
	}
	return end, running
}

// ask queries the cluster about the due pods, and records those with nothing more
// to learn.
func (w *Watcher) ask(ctx context.Context, now time.Time) {
	for uid, list := range w.pending {
		if ctx.Err() != nil {
			return
		}
		if slices.ContainsFunc(list, func(c *came) bool { return now.Before(c.due(w.conf.Settle)) }) {
			continue // the pod is queried once for all of its containers
		}
		delete(w.pending, uid)
		left, err := w.learn(ctx, list, now)
		if kube.Code(err) == http.StatusForbidden {
			w.denied = true
			w.conf.Log.Warn("spin-ups of pods: no pull times and no readiness, because the API server does not allow this agent to get pods and list events", "err", err)
		} else if err != nil {
			w.conf.Log.Debug("spin-ups of pods: querying the API server failed", "err", err)
		}
		if len(left) > 0 {
			w.pending[uid] = left
		}
	}
}

// learn queries one pod. It returns the containers to query again, and records
// the others.
func (w *Watcher) learn(ctx context.Context, list []*came, now time.Time) ([]*came, error) {
	box := list[0].box
	need := 1
	if list[0].asked == 0 {
		need = 2
	}
	if w.denied || !w.asks.AllowN(now, need) {
		w.record(list)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var left []*came
	pod, err := w.conf.Cluster.Pod(ctx, box.Namespace, box.Name)
	if err != nil || pod.Meta.UID != box.UID {
		w.record(list)
		return nil, err
	}
	var events []kube.PodEvent
	if need == 2 {
		events, err = w.conf.Cluster.PodEvents(ctx, box.Namespace, box.UID, "Pulled")
	}
	for _, c := range list {
		c.events(events)
		c.asked++
		if c.ready(pod) {
			w.record([]*came{c})
		} else {
			left = append(left, c)
		}
	}
	return left, err
}

func (w *Watcher) record(list []*came) {
	for _, c := range list {
		w.conf.Record(c.rec)
	}
}
