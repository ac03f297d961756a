package spinup

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Phase is a part of a spin-up.
type Phase string

// The phases, in their order.
const (
	Download Phase = "download"
	Extract  Phase = "extract"
	Create   Phase = "create"
	Start    Phase = "start"
	Ready    Phase = "ready"
)

// Phases returns all phases, in their order.
func Phases() []Phase { return []Phase{Download, Extract, Create, Start, Ready} }

// Kind is the origin of a spin-up.
type Kind string

// The kinds.
const (
	ForSession Kind = "session"
	ForPull    Kind = "pull"  // holdfast pull
	ForRun     Kind = "run"   // holdfast run
	ForOther   Kind = "other" // another client of the same engine
	ForPod     Kind = "pod"   // a container of a Kubernetes pod, by the kubelet
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{ForSession, ForPull, ForRun, ForOther, ForPod} }

// Outcome is the result of a spin-up.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Stopped Outcome = "stopped" // it was cancelled
)

// Record is one spin-up: one image and, if there was one, its container.
type Record struct {
	ID   string `json:"id"` // sorts by Begun
	Kind Kind   `json:"kind"`
	Job  string `json:"job,omitempty"` // the run's id, the session's key, or the pod as namespace/name
	// Template is the name of a session's template, "" for other kinds.
	Template string          `json:"template,omitempty"`
	Image    string          `json:"image"`
	Digest   string          `json:"digest,omitempty"`
	Begun    time.Time       `json:"begun"`
	Took     holdfast.Millis `json:"took_ms"`
	Outcome  Outcome         `json:"outcome"`
	Cause    Cause           `json:"cause,omitempty"`
	Error    string          `json:"error,omitempty"`
	Failed   Phase           `json:"failed_in,omitempty"` // the phase of a failure, "" if unknown

	// Times are the durations of the phases. For a pull they are wall times; for
	// a pull that joined another they are the wait for it.
	Times map[Phase]holdfast.Millis `json:"times_ms"`
	// Pull is nil if the image was not checked, or the pull was not observed.
	Pull *Pull `json:"pull,omitempty"`
	// Pulled is when an earlier pull of the image by another client ended, if
	// nothing else is known of it.
	Pulled    time.Time `json:"pulled,omitzero"`
	Container string    `json:"container,omitempty"` // full id
	Name      string    `json:"name,omitempty"`      // the container's
	Cohort    Cohort    `json:"cohort"`
	// Arms are the arms of the running experiments (holdfast.Arm), by their names.
	Arms map[string]string `json:"arms,omitempty"`
	// Collected reports that garbage collection deleted an object during the
	// spin-up.
	Collected bool `json:"collected,omitempty"`
}

// Cohort is the set of properties by which spin-ups are compared.
type Cohort struct {
	Host       string `json:"host"`
	Engine     string `json:"engine"` // name and version: "docker 20.10.24"
	Driver     string `json:"driver"` // overlay2
	ImageStore string `json:"image_store"`
	Kernel     string `json:"kernel"`
	Unpigz     bool   `json:"unpigz"` // the engine can decompress with it, in parallel
	// Runtime is the container runtime if it is not the engine's default, for
	// example runsc. It is known only for pods.
	Runtime string `json:"runtime,omitempty"`
}

// NewCohort returns the cohort of an engine on host. unpigz is the result of
// HasUnpigz.
func NewCohort(host string, info engine.Info, unpigz bool) Cohort {
	return Cohort{
		Host: host, Engine: info.Name + " " + info.Version, Driver: info.StorageDriver,
		ImageStore: info.ImageStore, Kernel: info.Kernel, Unpigz: unpigz,
	}
}

// Limits of external text and lists in a record.
const (
	maxWords        = 2048
	maxRecordLayers = 128 // the most that overlay2 can mount
	maxArms         = 64
)

// Bounded returns the record with all external text and lists cut to the size that a
// Store keeps and that one request to an agent can carry.
func (r Record) Bounded() Record {
	for _, s := range []*string{&r.Image, &r.Digest, &r.Error, &r.Job, &r.Template, &r.Name, &r.Container,
		&r.Cohort.Host, &r.Cohort.Engine, &r.Cohort.Driver, &r.Cohort.ImageStore, &r.Cohort.Kernel, &r.Cohort.Runtime} {
		*s = cut(*s)
	}
	if len(r.Arms) > maxArms {
		r.Arms = nil
	}
	if r.Pull == nil {
		return r
	}
	p := *r.Pull
	p.Image, p.Digest = cut(p.Image), cut(p.Digest)
	p.Layers = slices.Clone(p.Layers[:min(len(p.Layers), maxRecordLayers)])
	for i := range p.Layers {
		p.Layers[i].ID = p.Layers[i].ID[:min(len(p.Layers[i].ID), 64)]
	}
	r.Pull = &p
	return r
}

func cut(s string) string {
	if len(s) > maxWords {
		return s[:maxWords] + "…"
	}
	return s
}

// An id begins with the time, in nanoseconds since 1970.
const (
	idBytes   = 12
	timeBytes = 8
)

// newID returns an id for a spin-up that began at t: 24 hex digits that sort by
// time.
func newID(t time.Time) string {
	var b [idBytes - timeBytes]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return firstID(t) + hex.EncodeToString(b[:])
}

// firstID sorts before the ids of all spin-ups that began at t or later.
func firstID(t time.Time) string {
	var b [timeBytes]byte
	binary.BigEndian.PutUint64(b[:], uint64(max(t.UnixNano(), 0)))
	return hex.EncodeToString(b[:])
}
