package spinup

import (
	"time"

	"holdfast"
)

// mib is the unit of throughput in bytes.
const mib = 1 << 20

// State is the progress of a layer.
type State string

// The states of a layer, in their order. Downloading follows Retrying again.
const (
	Announced   State = "announced"   // to be fetched
	Waiting     State = "waiting"     // for one of the engine's slots
	Downloading State = "downloading" //
	Retrying    State = "retrying"    // waiting before the next attempt
	Downloaded  State = "downloaded"  // waiting for the layers below
	Extracting  State = "extracting"  //
	Complete    State = "complete"    // on this host, fetched by this pull
	Present     State = "present"     // already on this host
)

// Transfer is an amount of data and the time of its transfer.
type Transfer struct {
	Bytes int64           `json:"bytes"`       // compressed
	Wall  holdfast.Millis `json:"wall_ms"`     // in which at least one layer was transferred
	Sum   holdfast.Millis `json:"layers_ms"`   // of all layers; more than Wall where they overlap
	Rate  float64         `json:"mib_per_s"`   // Bytes ÷ Wall; 0 if unknown
	Exact bool            `json:"bytes_exact"` // false: some bytes are unknown, and the rate too
}

// Layer is the part of a pull for one layer. Times are since the pull began.
type Layer struct {
	ID    string `json:"id"` // first 12 digits of its digest
	State State  `json:"state"`
	Size  int64  `json:"size"` // compressed bytes, 0 if unknown
	// Fetched is the number of bytes that this pull fetched of it. For a part it is
	// the engine's last count.
	Fetched int64 `json:"fetched"`
	// Position is the engine's count in the current state: bytes of Size, or 0.
	Position int64 `json:"-"`

	Download     Span            `json:"download,omitzero"` // from its first byte to its last, with the retries' waits
	DownloadTime holdfast.Millis `json:"download_ms"`       // without them
	Extract      Span            `json:"extract,omitzero"`
	Queued       holdfast.Millis `json:"queued_ms"`          // from announced to first byte: a slot, and the registry's answer
	Waited       holdfast.Millis `json:"waited_ms"`          // from downloaded to extracting: for the layers below
	Retries      int             `json:"retries,omitempty"`  // restarts of the download
	RetryWait    holdfast.Millis `json:"retry_ms,omitempty"` // and the waits before that
	Joined       bool            `json:"joined,omitempty"`   // another pull fetched it
	Unknown      bool            `json:"unknown,omitempty"`  // the engine did not report what it fetched
	Inferred     bool            `json:"inferred,omitempty"` // the start of the extraction is inferred, not reported
}

// Span is a piece of time since the pull began.
type Span struct {
	From holdfast.Millis `json:"from_ms"`
	To   holdfast.Millis `json:"to_ms"`
}

// Pull is a pull in figures.
type Pull struct {
	Image  string          `json:"image"` // as asked for
	Digest string          `json:"digest,omitempty"`
	Begun  time.Time       `json:"begun"`
	Took   holdfast.Millis `json:"took_ms"`
	// Resolve is the time until the engine knew what to fetch: the registry's
	// login and manifest.
	Resolve   holdfast.Millis `json:"resolve_ms"`
	Download  Transfer        `json:"download"`
	Extract   Transfer        `json:"extract"`
	Retries   int             `json:"retries"`
	RetryWait holdfast.Millis `json:"retry_ms"` // in which at least one layer waited for a retry
	Layers    []Layer         `json:"layers"`   // in the engine's order, mostly bottom first

	Done   bool `json:"done"`   // the image is on this host
	Cached bool `json:"cached"` // the image was on this host before: nothing was fetched
	Joined bool `json:"joined"` // it waited for layers of another pull
	// Whole: only the duration of the whole pull including the extraction is
	// known; it is in Download.
	Whole bool `json:"whole,omitempty"`
}

// WholePull returns the figures of a pull of which only the duration and the
// compressed bytes, 0 if unknown, are known.
func WholePull(image string, begun time.Time, took time.Duration, bytes int64) Pull {
	wall := holdfast.Millis(max(took, 0))
	t := Transfer{Bytes: max(bytes, 0), Wall: wall, Sum: wall, Rate: rate(bytes, took), Exact: bytes > 0}
	return Pull{Image: image, Begun: begun.UTC().Round(0), Took: wall, Download: t, Extract: Transfer{Exact: true}, Layers: []Layer{}, Done: true, Whole: true}
}

// Stuck returns the layer at which a failed pull most likely failed, and false if
// no layer was in progress. The engine itself does not report it.
func (p Pull) Stuck() (Layer, bool) {
	// Layers are extracted one by one, and a retry is more likely the cause than
	// a concurrent download.
	for _, state := range []State{Extracting, Retrying, Downloading} {
		for _, l := range p.Layers {
			if l.State == state {
				return l, true
			}
		}
	}
	return Layer{}, false
}

// Shared returns the pull for a caller that waited only for its end, for waited, while
// another record has its figures. The pull then is joined and counts no bytes.
func (p Pull) Shared(waited time.Duration) Pull {
	p.Joined = !p.Cached
	missed := max(p.Took-holdfast.Millis(waited), 0)
	p.Took -= missed
	// Before the wait began, the pull first resolved and then mostly downloaded.
	missed = max(missed-p.Resolve, 0)
	for _, t := range []*Transfer{&p.Download, &p.Extract} {
		less := min(missed, t.Wall)
		missed -= less
		t.Bytes, t.Rate, t.Sum, t.Wall = 0, 0, t.Wall-less, t.Wall-less
	}
	p.Resolve, p.Retries, p.RetryWait, p.Layers = 0, 0, 0, nil
	return p
}

// shortest is the shortest time that gives a rate. An engine under load sends the lines of a
// layer's begin and end at once.
const shortest = time.Millisecond

// rate returns MiB/s, or 0 if unknown.
func rate(bytes int64, wall time.Duration) float64 {
	if bytes <= 0 || wall < shortest {
		return 0
	}
	return float64(bytes) / mib / wall.Seconds()
}
