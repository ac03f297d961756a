package kube

import (
	"context"
	"net/url"
	"time"
)

// PodEvent is an event of a kubelet about a pod.
type PodEvent struct {
	Reason  string
	Message string
	// Container is the field of the pod's spec to which the event refers, such as
	// spec.containers{web}; "" for the pod.
	Container string
	At        time.Time // the first occurrence, in whole seconds
}

// PodEvents lists the events of one reason about the pod with a uid. The API
// server reads all events of the namespace for it, and deletes them after an hour
// by default.
func (c *Client) PodEvents(ctx context.Context, namespace, uid, reason string) ([]PodEvent, error) {
	type event struct {
		Reason   string `json:"reason"`
		Message  string `json:"message"`
		Involved struct {
			Field string `json:"fieldPath"`
		} `json:"involvedObject"`
		First *time.Time `json:"firstTimestamp"`
		Time  *time.Time `json:"eventTime"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
	list, err := list[event](ctx, c, path, url.Values{"fieldSelector": {"involvedObject.uid=" + uid + ",reason=" + reason}})
	var out []PodEvent
	for _, e := range list {
		p := PodEvent{Reason: e.Reason, Message: e.Message, Container: e.Involved.Field}
		switch {
		case e.First != nil:
			p.At = *e.First
		case e.Time != nil:
			p.At = *e.Time
		default:
			continue
		}
		out = append(out, p)
	}
	return out, err
}
