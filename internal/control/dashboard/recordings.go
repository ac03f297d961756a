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
	Off     *off
	Admin   bool
	Lengths []int // choices of a recording's length, in seconds
	Rows    []recordingRow
}

type recordingRow struct {
	ID, Path, At, When  string
	Length, Of          string
	Samples, Busy, Size string
	Kernel              string
}

func recordingsParts(_ context.Context, d *Dashboard, v view) ([]part, error) {
	all, err := d.source.Recordings()
	data := recordingsData{Off: offOf(err), Admin: v.admin, Lengths: []int{10, 5, 30, 60}}
	for _, r := range all {
		data.Rows = append(data.Rows, recordingRowOf(r))
	}
	return []part{{"recordings", "recordings", data}}, nil
}

func recordingRowOf(r recordings.Recording) recordingRow {
	row := recordingRow{ID: r.ID, Path: "/doctor/recordings/" + r.ID, At: stamp(r.At), When: r.At.UTC().Format("2 Jan 15:04:05"), Length: duration(r.Seconds),
		Of: r.Container, Samples: thousands(int(r.Samples)), Busy: share(r.Busy), Size: size(r.Bytes), Kernel: r.Kernel}
	if row.Of == "" {
		row.Of = "the host"
	}
	return row
}

// recordingData is the data of the page of one recording.
type recordingData struct {
	Meta           profile.Meta
	At, When, Busy string
	Samples        string
	Flame          profile.Flame
	Containers     []profile.Usage
	Kernel         []profile.Path
	Functions      []profile.Function
	File           string
	ID             string
}

// Rows of a recording's tables.
const recordingTop = 30

func recordingParts(_ context.Context, d *Dashboard, v view) ([]part, error) {
	p, err := d.recording(v.query.key)
	if err != nil {
		return nil, err
	}
	s := profile.Summarize(p, recordingTop)
	data := recordingData{Meta: p.Meta, At: stamp(p.Meta.Began), When: p.Meta.Began.UTC().Format("2 Jan 15:04:05"), Busy: share(p.Busy()), Samples: thousands(int(s.Samples)),
		Flame: profile.FlameOf(p), Containers: s.Containers, Kernel: s.Kernel, Functions: s.Functions, ID: v.query.key, File: "/v1/doctor/recordings/" + v.query.key}
	return []part{{"recording", "recording", data}}, nil
}

// recording reads a recording. Only a few are read at once, because they need memory.
// The error is an *api.Error.
func (d *Dashboard) recording(id string) (*profile.Profile, error) {
	select {
	case d.heavy <- struct{}{}:
		defer func() { <-d.heavy }()
	default:
		return nil, &api.Error{Code: api.CodeBusy, Message: "other recordings are being read at this moment"}
	}
	p, err := d.source.Recording(id)
	if err != nil {
		return nil, api.ErrorOf(err)
	}
	return p, nil
}

// difference answers with the page that compares two recordings: one file with its own
// style, and a policy that allows only that style.
func (d *Dashboard) difference(w http.ResponseWriter, r *http.Request, _ api.Caller) {
	var sides [2]*profile.Profile
	for i, name := range []string{"good", "bad"} {
		var err error
		if sides[i], err = d.recording(r.URL.Query().Get(name)); err != nil {
			d.problem(w, r, err)
			return
		}
	}
	var page bytes.Buffer
	if err := profile.Compare(sides[0], sides[1]).WritePage(&page); err != nil {
		d.problem(w, r, err)
		return
	}
	w.Header().Set("Content-Security-Policy", profile.PagePolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // the browser may have disconnected
}

// record makes the API record the CPUs.
func (d *Dashboard) record(w http.ResponseWriter, r *http.Request, c api.Caller) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actLimit))
	if err := form(w, r); err != nil {
		d.problem(w, r, err)
		return
	}
	seconds, err := strconv.Atoi(r.PostForm.Get("seconds"))
	if err != nil || seconds < 1 || seconds > int(recordings.MaxFor/time.Second) {
		d.problem(w, r, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("a recording takes 1 to %d seconds", recordings.MaxFor/time.Second)})
		return
	}
	var one recordings.Recording
	q := api.RecordRequest{For: holdfast.Millis(time.Duration(seconds) * time.Second), Container: r.PostForm.Get("container")}
	if err := d.ask(r, "/v1/doctor/recordings", q, &one); err != nil {
		d.problem(w, r, err)
		return
	}
	http.Redirect(w, r, (&url.URL{Path: "/doctor/recordings/" + one.ID}).String(), http.StatusSeeOther)
}
