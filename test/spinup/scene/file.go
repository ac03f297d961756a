package scene

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"holdfast/internal/platform/engine"
)

// File is a recorded stream: a head, a line for each event, an end.
type File struct {
	Head   Head
	Events []engine.PullEvent // with times from time.Time{} on
	Ended  time.Time
	Err    error
}

// Head is the first line of a recorded stream.
type Head struct {
	Engine     string           `json:"engine"` // name and version
	ImageStore string           `json:"image_store"`
	Image      string           `json:"image"`
	Sizes      map[string]int64 `json:"sizes,omitempty"` // compressed bytes by digest, from the manifest
}

// line is an event or, with End set, the end.
type line struct {
	Millis  float64 `json:"ms"` // since the pull was requested
	Layer   string  `json:"layer,omitempty"`
	Status  string  `json:"status,omitempty"`
	Current int64   `json:"current,omitempty"`
	Total   int64   `json:"total,omitempty"`
	Units   string  `json:"units,omitempty"`
	Times   *times  `json:"times,omitempty"`
	End     bool    `json:"end,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// times are an event's LayerTimes, in milliseconds since the pull was requested.
// A nil is unknown.
type times struct {
	Size      int64    `json:"size"`
	From      int64    `json:"from,omitempty"`
	Requested *float64 `json:"requested,omitempty"`
	Received  float64  `json:"received"`
	Stored    float64  `json:"stored"`
	Empty     *float64 `json:"empty,omitempty"`
	Extracted float64  `json:"extracted"`
}

func timesOf(t *engine.LayerTimes, since func(time.Time) float64) *times {
	if t == nil {
		return nil
	}
	out := &times{Size: t.Size, From: t.From, Received: since(t.Received), Stored: since(t.Stored), Extracted: since(t.Extracted)}
	for at, to := range map[*time.Time]**float64{&t.Requested: &out.Requested, &t.Empty: &out.Empty} {
		if !at.IsZero() {
			ms := since(*at)
			*to = &ms
		}
	}
	return out
}

func (t *times) read(at func(ms float64) time.Time) *engine.LayerTimes {
	if t == nil {
		return nil
	}
	out := &engine.LayerTimes{Size: t.Size, From: t.From, Received: at(t.Received), Stored: at(t.Stored), Extracted: at(t.Extracted)}
	for ms, to := range map[*float64]*time.Time{t.Requested: &out.Requested, t.Empty: &out.Empty} {
		if ms != nil {
			*to = at(*ms)
		}
	}
	return out
}

// Write writes the stream as a file.
func (s Stream) Write(w io.Writer, info engine.Info) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	head := Head{Engine: info.Name + " " + info.Version, ImageStore: info.ImageStore, Image: s.Image, Sizes: s.Sizes}
	if err := out.Encode(head); err != nil {
		return err
	}
	since := func(t time.Time) float64 { return math.Round(float64(t.Sub(s.Begun))/1e3) / 1e3 }
	for _, ev := range s.Events {
		l := line{Millis: since(ev.Time), Layer: ev.Layer, Status: ev.Status, Current: ev.Current, Total: ev.Total, Units: ev.Units}
		l.Times = timesOf(ev.Times, since)
		if err := out.Encode(l); err != nil {
			return err
		}
	}
	end := line{Millis: since(s.Ended), End: true}
	if s.Err != nil {
		end.Error = s.Err.Error()
	}
	return out.Encode(end)
}

// Read reads a recorded stream. Its times count from begun.
func Read(r io.Reader, begun time.Time) (File, error) {
	var f File
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		return f, errors.New("it has no head")
	}
	if err := json.Unmarshal(lines.Bytes(), &f.Head); err != nil {
		return f, fmt.Errorf("its head: %w", err)
	}
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return f, fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		after := func(ms float64) time.Time { return begun.Add(time.Duration(ms * 1e6)) }
		at := after(l.Millis)
		if l.End {
			f.Ended = at
			if l.Error != "" {
				f.Err = errors.New(l.Error)
			}
			return f, nil
		}
		f.Events = append(f.Events, engine.PullEvent{Time: at, Layer: l.Layer, Status: l.Status, Current: l.Current, Total: l.Total, Units: l.Units, Times: l.Times.read(after)})
	}
	return f, errors.New("it has no end")
}
