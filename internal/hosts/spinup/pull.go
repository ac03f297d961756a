package spinup

import (
	"time"

	"holdfast"
)

// mib is what throughput is counted in.
const mib = 1 << 20

// State is how far a layer has come.
type State string

// The states of a layer, in their order. Retrying goes back to Downloading.
const (
	Announced   State = "announced"   // it will be fetched
	Waiting     State = "waiting"     // for one of the engine's slots
	Downloading State = "downloading" //
	Retrying    State = "retrying"    // it waits before it fetches again
	Downloaded  State = "downloaded"  // and waits for the layers below
	Extracting  State = "extracting"  //
	Complete    State = "complete"    // it is on this host, by this pull
	Present     State = "present"     // it was on this host
)

// Transfer is how much was moved in how long.
type Transfer struct {
	Bytes int64           `json:"bytes"`       // compressed
	Wall  holdfast.Millis `json:"wall_ms"`     // in which at least one layer was at it
	Sum   holdfast.Millis `json:"layers_ms"`   // of all layers; more than Wall where they overlap
	Rate  float64         `json:"mib_per_s"`   // Bytes ÷ Wall; 0 where it is not known
	Exact bool            `json:"bytes_exact"` // false: some bytes are not known, and no rate is
}

// Layer is what a pull did to one layer. Times are since the pull began.
type Layer struct {
	ID    string `json:"id"` // first 12 digits of its digest
	State State  `json:"state"`
	Size  int64  `json:"size"` // compressed bytes, 0 where not known
	// Fetched is what this pull brought of it; a part is what the engine said
	// last.
	Fetched int64 `json:"fetched"`
	// Position is what the engine says of the state it is in: bytes of Size,
	// or 0.
	Position int64 `json:"-"`

	Download     Span            `json:"download,omitzero"` // from its first byte to its last, with the retries' waits
	DownloadTime holdfast.Millis `json:"download_ms"`       // without them
	Extract      Span            `json:"extract,omitzero"`
	Queued       holdfast.Millis `json:"queued_ms"`          // from announced to first byte: a slot, and the registry's answer
	Waited       holdfast.Millis `json:"waited_ms"`          // from downloaded to extracting: for the layers below
	Retries      int             `json:"retries,omitempty"`  // times that it was begun again
	RetryWait    holdfast.Millis `json:"retry_ms,omitempty"` // and the waits before that
	Joined       bool            `json:"joined,omitempty"`   // somebody else's pull fetched it
	Unknown      bool            `json:"unknown,omitempty"`  // the engine did not tell what it fetched
	Inferred     bool            `json:"inferred,omitempty"` // the extraction's begin is not from the engine
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
	// Resolve is the time until the engine knew what there is to do: the
	// registry's login and manifest.
	Resolve   holdfast.Millis `json:"resolve_ms"`
	Download  Transfer        `json:"download"`
	Extract   Transfer        `json:"extract"`
	Retries   int             `json:"retries"`
	RetryWait holdfast.Millis `json:"retry_ms"` // in which at least one layer waited to be begun again
	Layers    []Layer         `json:"layers"`   // in the engine's order, mostly bottom first

	Done   bool `json:"done"`   // the image is on this host
	Cached bool `json:"cached"` // and was before: nothing was fetched
	Joined bool `json:"joined"` // it waited for layers of somebody else's pull
	// Whole: only the time of the whole pull is known, extraction included; Download
	// has it.
	Whole bool `json:"whole,omitempty"`
}

// WholePull are the figures of a pull that took so long and brought so many
// compressed bytes, 0 where that is not known, of which no more was told.
func WholePull(image string, begun time.Time, took time.Duration, bytes int64) Pull {
	wall := holdfast.Millis(max(took, 0))
	t := Transfer{Bytes: max(bytes, 0), Wall: wall, Sum: wall, Rate: rate(bytes, took), Exact: bytes > 0}
	return Pull{Image: image, Begun: begun.UTC().Round(0), Took: wall, Download: t, Extract: Transfer{Exact: true}, Layers: []Layer{}, Done: true, Whole: true}
}

// Counts are how many layers were fetched by this pull, joined, and present.
func (p Pull) Counts() (fetched, joined, present int) {
	for _, l := range p.Layers {
		switch {
		case l.State == Present:
			present++
		case l.Joined:
			joined++
		case l.State == Downloaded || l.State == Extracting || l.State == Complete:
			fetched++
		}
	}
	return fetched, joined, present
}

// Stuck is the layer that a pull which failed was most likely at, and false
// where none was being worked on. The engine itself does not say.
func (p Pull) Stuck() (Layer, bool) {
	// Layers are extracted one by one, and a retry tells more than a
	// download beside it.
	for _, state := range []State{Extracting, Retrying, Downloading} {
		for _, l := range p.Layers {
			if l.State == state {
				return l, true
			}
		}
	}
	return Layer{}, false
}

// Shared is the pull as it was for one who waited for it, for so long at the end,
// when somebody else's record has its figures: it joined, and counts no bytes.
func (p Pull) Shared(waited time.Duration) Pull {
	p.Joined = !p.Cached
	missed := max(p.Took-holdfast.Millis(waited), 0)
	p.Took -= missed
	// What came before it came was resolving, and then mostly downloading.
	missed = max(missed-p.Resolve, 0)
	for _, t := range []*Transfer{&p.Download, &p.Extract} {
		less := min(missed, t.Wall)
		missed -= less
		t.Bytes, t.Rate, t.Sum, t.Wall = 0, 0, t.Wall-less, t.Wall-less
	}
	p.Resolve, p.Retries, p.RetryWait, p.Layers = 0, 0, 0, nil
	return p
}

// rate is MiB/s, 0 where there is none.
func rate(bytes int64, wall time.Duration) float64 {
	if bytes <= 0 || wall <= 0 {
		return 0
	}
	return float64(bytes) / mib / wall.Seconds()
}
