package api

import (
	"context"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
)

// Recordings are recordings of the host's CPU time. *recordings.Store is one.
type Recordings interface {
	// List lists the recordings that are kept, the newest first.
	List() ([]recordings.Recording, error)

	// Open returns a recording. holdfast.ErrNotFound.
	Open(id string) (*profile.Profile, error)

	// Record makes a recording, of the whole host or of a container, and returns
	// when it is kept. holdfast.ErrBusy while another one is made.
	Record(ctx context.Context, q recordings.Request) (recordings.Recording, error)
}

// RecordRequest asks for a recording.
type RecordRequest struct {
	// For is how long to record, up to recordings.MaxFor; 0 is DefaultRecording.
	For holdfast.Millis `json:"for_ms,omitempty"`
	// Container is the only container to record, by name or id; absent: the host.
	Container string `json:"container,omitempty"`
	// Wait is how long to wait for the container's start, up to recordings.MaxWait; the
	// recording then begins with its first instruction. Absent: the container runs.
	Wait holdfast.Millis `json:"wait_ms,omitempty"`
}

// DefaultRecording is the length of a recording if the request has none.
const DefaultRecording = 10 * time.Second

// RecordingList is the answer to a list of recordings.
type RecordingList struct {
	Recordings []recordings.Recording `json:"recordings"`
}

// limitRecord is enough for the longest recording and for finding its symbols.
const limitRecord = recordings.MaxWait + recordings.MaxFor + time.Minute

type recordingHandlers struct{ recordings Recordings }

func recordingRoutes(all Recordings) []route {
	h := recordingHandlers{all}
	return []route{
		{method: "GET", path: "/v1/doctor/recordings", id: "listRecordings", summary: "Recordings of this host's CPU time, the newest first.",
			access: forReader, limit: limitAsk, answer: RecordingList{}, handle: asking(h.list)},
		{method: "POST", path: "/v1/doctor/recordings", id: "record", summary: "Record this host's CPU time; answers when the recording is kept. Of more than 20 recordings the oldest is deleted.",
			access: forAdmin, limit: limitRecord, request: RecordRequest{}, answer: recordings.Recording{}, handle: doing(h.record)},
		{method: "GET", path: "/v1/doctor/recordings/{id}", id: "getRecording", summary: "One recording, in pprof's format, compressed.",
			access: forReader, limit: limitStats, media: mediaOctets, handle: h.get},
	}
}

func (h recordingHandlers) list(*http.Request) (RecordingList, error) {
	all, err := h.recordings.List()
	return RecordingList{notNil(all)}, err
}

func (h recordingHandlers) record(r *http.Request, q RecordRequest) (recordings.Recording, error) {
	length := time.Duration(q.For)
	if length == 0 {
		length = DefaultRecording
	}
	note(r.Context(), "for", length)
	if q.Container != "" {
		note(r.Context(), "container", bounded(q.Container))
	}
	one := recordings.Request{For: length, Container: q.Container, Wait: time.Duration(q.Wait)}
	if err := one.Validate(); err != nil {
		return recordings.Recording{}, badRequest("%v", err)
	}
	return h.recordings.Record(r.Context(), one)
}

func (h recordingHandlers) get(w http.ResponseWriter, r *http.Request) error {
	p, err := h.recordings.Open(r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaOctets)
	return profile.Write(w, p)
}
