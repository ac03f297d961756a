package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
)

// Recorder makes recordings of where the host's CPU time goes. Where the doctor is
// switched off its methods return holdfast.ErrNotFound, with a hint.
type Recorder interface {
	// Recordings lists those that are kept, the newest first.
	Recordings(ctx context.Context) ([]recordings.Recording, error)

	// Recording returns one. holdfast.ErrNotFound.
	Recording(ctx context.Context, id string) (*profile.Profile, error)

	// Record makes one, of the whole host or of a container, and returns when it
	// is kept. holdfast.ErrBusy while another one is made.
	Record(ctx context.Context, length time.Duration, container string) (recordings.Recording, error)
}

// RecordRequest asks for a recording.
type RecordRequest struct {
	// For is how long to record, up to recordings.MaxFor; 0 is DefaultRecording.
	For holdfast.Millis `json:"for_ms,omitempty"`
	// Container is the only one to record, by name or id; absent: the host.
	Container string `json:"container,omitempty"`
}

// DefaultRecording is how long one takes where nobody says.
const DefaultRecording = 10 * time.Second

// RecordingList is the answer to a list of recordings.
type RecordingList struct {
	Recordings []recordings.Recording `json:"recordings"`
}

// limitRecord is for the longest recording, and to find names.
const limitRecord = recordings.MaxFor + time.Minute

const mediaOctets = "application/octet-stream"

func recordingRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/doctor/recordings", id: "listRecordings", summary: "Recordings of where this host's CPU time went, the newest first.",
			access: forReader, limit: limitAsk, answer: RecordingList{}, handle: (*server).listRecordings},
		{method: "POST", path: "/v1/doctor/recordings", id: "record", summary: "Record where this host's CPU time goes; answers when it is kept. The oldest over 20 is let go of.",
			access: forAdmin, limit: limitRecord, request: RecordRequest{}, answer: recordings.Recording{}, handle: (*server).record},
		{method: "GET", path: "/v1/doctor/recordings/{id}", id: "getRecording", summary: "One recording, in pprof's format, packed.",
			access: forReader, limit: limitStats, media: mediaOctets, handle: (*server).getRecording},
	}
}

func (s *server) listRecordings(w http.ResponseWriter, r *http.Request) error {
	all, err := s.b.Recordings(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, RecordingList{notNil(all)})
}

func (s *server) record(w http.ResponseWriter, r *http.Request) error {
	var q RecordRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	length := time.Duration(q.For)
	if length == 0 {
		length = DefaultRecording
	}
	note(r.Context(), "for", length)
	if q.Container != "" {
		note(r.Context(), "container", bounded(q.Container))
	}
	if length < recordings.MinFor || length > recordings.MaxFor {
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the time is %v, it has to be from %v to %v", length, recordings.MinFor, recordings.MaxFor)}
	}
	one, err := s.b.Record(r.Context(), length, q.Container)
	if err != nil {
		return err
	}
	return writeJSON(w, one)
}

func (s *server) getRecording(w http.ResponseWriter, r *http.Request) error {
	p, err := s.b.Recording(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaOctets)
	return profile.Write(w, p)
}
