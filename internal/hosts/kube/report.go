package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast"
)

// SetConditions sets conditions of a node; those of other types stay as they are.
func (c *Client) SetConditions(ctx context.Context, node string, conditions []Condition) error {
	body := map[string]any{"status": map[string]any{"conditions": conditions}} // merged by type
	return c.call(ctx, request{verb: "patch", method: http.MethodPatch, path: nodePath(node) + "/status", kind: strategicPatch, body: body}, nil)
}

// microTime is the format of a lease's time (metav1.MicroTime).
const microTime = "2006-01-02T15:04:05.000000Z"

func leasePath(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/leases"
}

// Renew writes a lease with its holder, the current time, its duration and
// annotations; it creates the lease if it does not exist. owner may be nil; when
// the owner is deleted, the lease is deleted with it.
func (c *Client) Renew(ctx context.Context, namespace, name, holder string, length time.Duration, annotations map[string]string, owner *Owner) error {
	meta := map[string]any{"name": name, "annotations": annotations}
	if owner != nil {
		meta["ownerReferences"] = []Owner{*owner}
	}
	body := map[string]any{
		"metadata": meta,
		"spec":     map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int(length.Seconds()), "renewTime": time.Now().UTC().Format(microTime)},
	}
	path := leasePath(namespace)
	err := c.call(ctx, request{verb: "patch", method: http.MethodPatch, path: path + "/" + url.PathEscape(name), kind: mergePatch, body: body}, nil)
	if !errors.Is(err, holdfast.ErrNotFound) {
		return err
	}
	return c.call(ctx, request{verb: "create", method: http.MethodPost, path: path, kind: plainJSON, body: body}, nil)
}

// Event is something that happened to an object, as `kubectl describe` shows it.
type Event struct {
	// Name is the event's name, from EventName. For a name that exists, the
	// error's Code is 409.
	Name      string
	About     Reference
	Warning   bool   // otherwise Normal
	Reason    string // MemcgLeak
	Message   string // at most maxMessage bytes are kept
	Component string // the reporting component
	Host      string // and its host
	At        time.Time
}

// Reference names an object.
type Reference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
}

// maxMessage is the maximum length of a message in bytes.
const maxMessage = 1024

// maxName is the maximum length of an event's name in bytes.
const maxName = 253

// EventName returns a name for an event about an object with the name about.
func EventName(about string) string {
	tail := "." + strings.ToLower(rand.Text()[:16])
	return strings.TrimRight(about[:min(len(about), maxName-len(tail))], "-.") + tail
}

// Tell writes an event. Events about nodes are in the namespace default, like the
// kubelet's.
func (c *Client) Tell(ctx context.Context, e Event) error {
	namespace, kind := cmp.Or(e.About.Namespace, "default"), "Normal"
	if e.Warning {
		kind = "Warning"
	}
	at := e.At.UTC().Format(time.RFC3339)
	body := map[string]any{
		"metadata":       map[string]any{"name": e.Name, "namespace": namespace},
		"involvedObject": e.About, "type": kind, "reason": e.Reason, "message": e.Message[:min(len(e.Message), maxMessage)],
		"source":         map[string]any{"component": e.Component, "host": e.Host},
		"firstTimestamp": at, "lastTimestamp": at, "count": 1,
	}
	return c.call(ctx, request{verb: "create", method: http.MethodPost, path: "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events", kind: plainJSON, body: body}, nil)
}
