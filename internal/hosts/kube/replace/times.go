package replace

import (
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// Times are how long a pod took to start, from its status, in whole seconds as
// Kubernetes writes times.
type Times struct {
	Init  *holdfast.Millis `json:"init_ms"`  // its init containers, from the first's start to the last's end; null: it has none
	Start *holdfast.Millis `json:"start_ms"` // its containers, from the first's start to ready; null: not known
	Total *holdfast.Millis `json:"total_ms"` // from its creation to ready; null: not known
}

// TimesOf returns the times of a pod. If it is not ready or its containers were
// restarted, only the times that are still valid are set.
func TimesOf(p kube.Pod) Times {
	var t Times
	var first, last time.Time
	again := false
	for _, c := range p.Status.InitContainers {
		if e := c.State.Terminated; e != nil {
			first = earlier(first, e.Started)
			last = slices.MaxFunc([]time.Time{last, e.Finished}, time.Time.Compare)
		}
	}
	if !first.IsZero() {
		t.Init = millis(last.Sub(first))
	}
	var began time.Time
	for _, c := range p.Status.Containers {
		again = again || c.RestartCount > 0
		if c.State.Running != nil {
			began = earlier(began, c.State.Running.Started)
		}
	}
	ready := p.ReadySince()
	if again || ready.IsZero() || began.IsZero() {
		return t
	}
	t.Start = millis(ready.Sub(began))
	t.Total = millis(ready.Sub(p.Meta.Created))
	return t
}

func millis(d time.Duration) *holdfast.Millis { return new(holdfast.Millis(max(d, 0))) }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
