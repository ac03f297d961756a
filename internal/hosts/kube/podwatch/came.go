package podwatch

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/spinup"
)

// came is a container that has started, with what is known of its start.
type came struct {
	box     cri.Sandbox
	c       cri.Container
	before  time.Time // the end of the step before
	running bool      // that step was the start of a container that still ran
	rec     spinup.Record
	asked   int // queries to the cluster
}

func newCame(box cri.Sandbox, c cri.Container, before time.Time, running bool, cohort spinup.Cohort) *came {
	cohort.Runtime = box.Handler
	begun := before
	if before.Equal(box.Created) && !box.Seen.IsZero() && box.Seen.Before(before) {
		begun = box.Seen
	}
	u := &came{box: box, c: c, before: before, running: running, rec: spinup.NewRecord(spinup.ForPod, cmp.Or(c.Image, c.ImageID, "?"), begun, cohort)}
	r := &u.rec
	r.Container, r.Name, r.Job, r.Outcome = c.ID, c.Name, box.Namespace+"/"+box.Name, spinup.OK
	if c.Started.IsZero() { // it was created and did not start
		r.Outcome, r.Failed, r.Cause = spinup.Failed, spinup.Start, spinup.Other
		r.Error = cmp.Or(c.Message, c.Reason, fmt.Sprintf("it did not start: exit code %d", c.Code))
		r.Took = millis(begun, c.Ended)
		r.Times[spinup.Start] = millis(c.Created, c.Ended)
		return u
	}
	r.Took = millis(begun, c.Started)
	r.Times[spinup.Start] = millis(c.Created, c.Started)
	return u
}

// image sets when the image arrived, as far as polls of the runtime show it.
func (u *came) image(a arrival) {
	window := u.c.Created.Sub(u.before)
	switch {
	case a.seen.IsZero() || u.running:
	case a.seen.Before(u.before):
		u.rec.Pull = &spinup.Pull{Image: u.rec.Image, Done: true, Cached: true}
		u.rec.Times[spinup.Create] = holdfast.Millis(max(window, 0))
	case !a.absent.Before(u.before): // it arrived in between
		p := spinup.WholePull(u.rec.Image, u.before, window, 0)
		u.rec.Pull = &p
		u.rec.Times[spinup.Download] = p.Took
	}
}

// Messages of the kubelet (pkg/kubelet/images/image_manager.go). Newer versions
// give more figures.
var (
	pulledText = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^Successfully pulled image ".*" in (\S+?)(?: \((\S+) including waiting\))?(?:\. Image size: (\d+) bytes\.?)?$`)
	})
	presentText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^Container image ".*" already present on machine`) })
)

// pulled is what one event "Pulled" says.
type pulled struct {
	at     time.Time     // end of the pull, in whole seconds
	cached bool          // the image was present
	took   time.Duration // otherwise the duration of the pull
	waited time.Duration // took, and the wait for other pulls of the node
	bytes  int64         // 0: not given
}

func parsePulled(e kube.PodEvent) (pulled, bool) {
	if presentText().MatchString(e.Message) {
		return pulled{at: e.At, cached: true}, true
	}
	m := pulledText().FindStringSubmatch(e.Message)
	if m == nil {
		return pulled{}, false
	}
	p := pulled{at: e.At}
	var err error
	if p.took, err = time.ParseDuration(m[1]); err != nil || p.took < 0 {
		return p, false
	}
	p.waited = p.took
	if d, err := time.ParseDuration(m[2]); err == nil && d > p.took {
		p.waited = d
	}
	p.bytes, _ = strconv.ParseInt(m[3], 10, 64) // 0 if not given
	return p, true
}

// events takes the kubelet's events about the pod's pulls. The first for a
// container is the one before its first start.
func (u *came) events(all []kube.PodEvent) {
	var first *pulled
	for _, e := range all {
		if !strings.HasSuffix(e.Container, "{"+u.c.Name+"}") {
			continue
		}
		if p, ok := parsePulled(e); ok && !p.at.After(u.c.Created) && (first == nil || p.at.Before(first.at)) {
			first = &p
		}
	}
	if first == nil {
		return
	}
	r := &u.rec
	delete(r.Times, spinup.Download)
	if first.cached {
		r.Pull = &spinup.Pull{Image: r.Image, Done: true, Cached: true}
	} else {
		if !strings.HasPrefix(r.Cohort.Engine, "containerd ") {
			first.bytes = 0 // other runtimes report the size on disk
		}
		p := spinup.WholePull(r.Image, first.at.Add(-first.took), first.took, first.bytes)
		r.Pull, r.Times[spinup.Download] = &p, p.Took
	}
	// Both are upper bounds: the event has whole seconds only, and the window may
	// include waits of the kubelet.
	create := min(u.c.Created.Sub(first.at), u.c.Created.Sub(u.before)-first.waited)
	r.Times[spinup.Create] = holdfast.Millis(max(create, 0))
}

// due returns when to query the cluster next.
func (u *came) due(settle time.Duration) time.Time {
	switch u.asked {
	case 0:
		return u.c.Started.Add(settle)
	case 1:
		return u.c.Started.Add(max(secondAsk, 2*settle))
	}
	return u.c.Started.Add(readyWithin)
}

// ready sets when the pod became ready, and reports whether nothing more can be
// learnt.
func (u *came) ready(pod kube.Pod) bool {
	if !probed(pod, u.c.Name) || pod.Finished() || pod.Meta.Deleted != nil || restarted(pod, u.c.Name) {
		return true
	}
	if since := pod.ReadySince(); !since.IsZero() {
		took := millis(u.c.Started, since)
		u.rec.Times[spinup.Ready] = took
		u.rec.Took += took
		return true
	}
	if u.asked < 3 {
		return false
	}
	r := &u.rec
	r.Outcome, r.Failed, r.Cause, r.Error = spinup.Failed, spinup.Ready, spinup.Other, fmt.Sprintf("its pod was not ready after %v", readyWithin)
	r.Times[spinup.Ready] = holdfast.Millis(readyWithin)
	r.Took += holdfast.Millis(readyWithin)
	return true
}

// probed reports whether a readiness or startup probe delays the container's
// readiness.
func probed(pod kube.Pod, name string) bool {
	c := specOf(pod, name)
	return c.ReadinessProbe != nil || c.StartupProbe != nil
}

// specOf returns what a pod specifies for a container; the zero value if the pod
// has no such container.
func specOf(pod kube.Pod, name string) kube.ContainerSpec {
	all := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
	i := slices.IndexFunc(all, func(c kube.ContainerSpec) bool { return c.Name == name })
	if i < 0 {
		return kube.ContainerSpec{}
	}
	return all[i]
}

// restarted reports whether the container was restarted: then the pod's readiness
// time is not that of the first start.
func restarted(pod kube.Pod, name string) bool {
	return slices.ContainsFunc(pod.Status.Containers, func(c kube.ContainerStatus) bool { return c.Name == name && c.RestartCount > 0 })
}

// millis returns the time from one instant to another. It is 0 if the second one
// comes before the first, as the API server's times have whole seconds only.
func millis(from, to time.Time) holdfast.Millis { return holdfast.Millis(max(to.Sub(from), 0)) }
