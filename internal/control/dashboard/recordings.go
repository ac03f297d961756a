package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
)

// recordingsData is the data of the page of all recordings.
type recordingsData struct {
	Off     *api.Error
	Admin   bool
	Lengths []int // choices of a recording's length, in seconds
	Rows    []recordings.Recording
}

func recordingsParts(_ context.Context, d *Dashboard, v view) ([]part, error) {
	all, err := d.source.Recordings()
	data := recordingsData{Off: api.ErrorOf(err), Admin: v.admin, Lengths: []int{10, 5, 30, 60}, Rows: all}
	return []part{{"recordings", recordingList(data)}}, nil
}

// recordingData is the data of the page of one recording.
type recordingData struct {
	profile.Summary
	ID    string
	Busy  float64
	Flame profile.Flame
}

// Rows of a recording's tables.
const recordingTop = 30

func recordingParts(_ context.Context, d *Dashboard, v view) ([]part, error) {
	p, err := d.recording(v.query.key)
	if err != nil {
		return nil, err
	}
	data := recordingData{Summary: profile.Summarize(p, recordingTop), ID: v.query.key, Busy: p.Busy(), Flame: profile.FlameOf(p)}
	return []part{{"recording", oneRecording(data)}}, nil
}

// recording reads a recording. Only a few are read at once, because they need memory.
func (d *Dashboard) recording(id string) (*profile.Profile, error) {
	select {
	case d.heavy <- struct{}{}:
		defer func() { <-d.heavy }()
	default:
		return nil, &api.Error{Code: api.CodeBusy, Message: "other recordings are being read at this moment"}
	}
	return d.source.Recording(id)
}

// difference answers with the page that compares two recordings: one file with its own
// style, and a policy that allows only that style.
func (d *Dashboard) difference(w http.ResponseWriter, r *http.Request, _ api.Caller) error {
	var sides [2]*profile.Profile
	for i, name := range []string{"good", "bad"} {
		var err error
		if sides[i], err = d.recording(r.URL.Query().Get(name)); err != nil {
			return err
		}
	}
	var page bytes.Buffer
	if err := profile.Compare(sides[0], sides[1]).WritePage(&page); err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", profile.PagePolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // the browser may have disconnected
	return nil
}

// record makes the API record the CPUs.
func (d *Dashboard) record(w http.ResponseWriter, r *http.Request, _ api.Caller) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actLimit))
	if err := form(w, r); err != nil {
		return err
	}
	seconds, err := strconv.Atoi(r.PostForm.Get("seconds"))
	if err != nil || seconds < 1 || seconds > int(recordings.MaxFor/time.Second) {
		return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("a recording takes 1 to %d seconds", recordings.MaxFor/time.Second)}
	}
	var one recordings.Recording
	q := api.RecordRequest{For: holdfast.Millis(time.Duration(seconds) * time.Second), Container: r.PostForm.Get("container")}
	if r.PostForm.Get("start") != "" {
		q.Wait = holdfast.Millis(recordings.MaxWait)
	}
	if err := d.ask(r, "/v1/doctor/recordings", q, &one); err != nil {
		return err
	}
	http.Redirect(w, r, (&url.URL{Path: "/doctor/recordings/" + one.ID}).String(), http.StatusSeeOther)
	return nil
}
