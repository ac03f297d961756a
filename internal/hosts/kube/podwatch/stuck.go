package podwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/spinup"
)

// Reasons of the kubelet for a waiting container (pkg/kubelet/images/types.go,
// and kuberuntime): it waits for its image, or it could not be created.
const (
	making = "ContainerCreating" // or pulling: the kubelet does not distinguish them
	behind = "PodInitializing"   // behind an init container
)

func forImage(reason string) bool {
	return strings.HasPrefix(reason, "ErrImage") || slices.Contains([]string{"ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "InvalidImageName", "SignatureValidationFailed"}, reason)
}

func notMade(reason string) bool {
	return slices.Contains([]string{"CreateContainerConfigError", "CreateContainerError", "PreCreateHookError"}, reason)
}

// stuck records, once for each pod, a container that has not appeared for a long
// time: a pull that hangs, or is refused repeatedly, creates no container. The
// runtime alone shows that for pods without any container. Other pods are not
// queried, because there a crashed container may be waiting.
func (w *Watcher) stuck(ctx context.Context, boxes []cri.Sandbox, containers []cri.Container, now time.Time) {
	there := map[string]bool{} // pods' sandboxes that have a container
	for _, c := range containers {
		there[c.Sandbox] = true
	}
	late := map[string]bool{}
	for _, b := range boxes {
		switch {
		case w.late[b.UID]:
		case !b.Ready || there[b.ID] || now.Sub(b.Created) < w.conf.Stuck:
			continue
		default:
			w.record([]*came{{rec: w.missing(ctx, b, now)}})
		}
		late[b.UID] = true
	}
	w.late = late
}

// missing returns the record of a pod without a container.
func (w *Watcher) missing(ctx context.Context, b cri.Sandbox, now time.Time) spinup.Record {
	name, image, reason, message := w.waits(ctx, b, now)
	cohort := w.cohort
	cohort.Runtime = b.Handler
	begun := b.Created
	if !b.Seen.IsZero() && b.Seen.Before(begun) {
		begun = b.Seen
	}
	r := spinup.NewRecord(spinup.ForPod, cmp.Or(image, "?"), begun, cohort)
	r.Name, r.Job, r.Took = name, b.Namespace+"/"+b.Name, millis(begun, now)
	r.Outcome, r.Failed, r.Cause = spinup.Failed, spinup.Download, spinup.Other
	what := "its first container was not created"
	switch {
	case forImage(reason):
		what = "its image was not pulled"
		if message != "" {
			r.Cause = spinup.CauseOf(errors.New(message))
		}
	case notMade(reason):
		what, r.Failed = "it could not be created", spinup.Create
	}
	r.Times[r.Failed] = millis(b.Created, now)
	r.Error = fmt.Sprintf("%s after %v", what, now.Sub(begun).Round(time.Second))
	if reason != "" {
		r.Error += ": " + reason
	}
	if message != "" {
		r.Error += ": " + message
	}
	return r
}

// waits returns the container that a pod waits for, from the API server; empty if
// unknown.
func (w *Watcher) waits(ctx context.Context, b cri.Sandbox, now time.Time) (name, image, reason, message string) {
	if w.conf.Cluster == nil || w.denied || !w.asks.AllowN(now, 1) {
		return
	}
	pod, err := w.conf.Cluster.Pod(ctx, b.Namespace, b.Name)
	if err != nil || pod.Meta.UID != b.UID {
		return
	}
	for _, c := range slices.Concat(pod.Status.InitContainers, pod.Status.Containers) {
		x := c.State.Waiting
		if x == nil || x.Reason == behind {
			continue
		}
		if reason == "" || reason == making { // a refusal is more specific
			name, image, reason, message = c.Name, specOf(pod, c.Name).Image, x.Reason, x.Message
		}
	}
	return name, image, reason, message
}
