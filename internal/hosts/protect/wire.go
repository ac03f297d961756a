package protect

import (
	"os"
	"time"
)

// Spec says what to hold, and how.
type Spec struct {
	Addresses []Address `json:"addresses"`
	Forwarded bool      `json:"forwarded,omitempty"`
	Overlap   bool      `json:"overlap,omitempty"`
	PIDs      []int     `json:"pids,omitempty"`
	// Backend is the one to use; "" and Auto are the best that works.
	Backend Name `json:"backend,omitempty"`
	// Limit is the longest that the hold may last; it has to be over 0.
	Limit time.Duration `json:"limit_ns"`
}

// Refusal says why a backend would not do.
type Refusal struct {
	Backend Name   `json:"backend"`
	Why     string `json:"why"`
}

// Began is a hold that has begun.
type Began struct {
	Backend Name          `json:"backend"`
	Took    time.Duration `json:"took_ns"`
	// Refused are the better backends that did not work.
	Refused []Refusal `json:"refused,omitempty"`
	// Leaves is what has to be tidied up if the keeper is killed.
	Leaves *Left `json:"leaves,omitempty"`
}

// Left is what a killed keeper left behind.
type Left struct {
	Backend Name      `json:"backend"`
	What    string    `json:"what"`
	Of      []Address `json:"of"`
}

// Released is a hold that has ended.
type Released struct {
	Reason Reason `json:"reason"`
	Stats  Stats  `json:"stats"`
	// Took is the time that the letting go took.
	Took time.Duration `json:"took_ns"`
	// Held is from the beginning of the hold to its last connection's going.
	Held time.Duration `json:"held_ns"`
	// Listening is whether anything listens.
	Listening bool `json:"listening"`
	// Error is what could not be tidied up.
	Error string `json:"error,omitempty"`
}

// op names a request and its answer.
type op string

const (
	opProbe    op = "probe"    // which backends work?
	opHold     op = "hold"     // begin
	opDrain    op = "drain"    // wait for the old server's clients
	opExited   op = "exited"   // the command has ended; not answered
	opTidy     op = "tidy"     // undo what a killed keeper left
	opRelease  op = "release"  // end now; not answered but by opReleased
	opReleased op = "released" // an answer that comes by itself

	// Of standing keepers only.
	opHello   op = "hello"   // what is installed?
	opInstall op = "install" // prepare for these ports, and for no others
	opStatus  op = "status"  // how is it going?
	opQuit    op = "quit"    // end when nothing is held
)

// request goes to the keeper.
type request struct {
	Op     op            `json:"op"`
	Spec   *Spec         `json:"spec,omitempty"`
	Limit  time.Duration `json:"limit_ns,omitempty"`
	Killed bool          `json:"killed,omitempty"`
	Left   *Left         `json:"left,omitempty"`
	// Installed is for opInstall.
	Installed []Installed `json:"installed,omitempty"`

	// locks came with an opHold, see KeeperOptions.
	locks []*os.File
}

// close lets go of what came with the request.
func (r request) close() {
	for _, f := range r.locks {
		f.Close()
	}
}

// answer comes from the keeper.
type answer struct {
	Op       op        `json:"op"`
	Error    string    `json:"error,omitempty"`
	Kind     errorKind `json:"kind,omitempty"`
	Probes   []Refusal `json:"probes,omitempty"` // Why is "" for one that works
	Began    *Began    `json:"began,omitempty"`
	Drained  *Drained  `json:"drained,omitempty"`
	Released *Released `json:"released,omitempty"`
	// Of standing keepers: the answers to opHello and opStatus.
	Hello    *hello    `json:"hello,omitempty"`
	Standing *Standing `json:"standing,omitempty"`
}

// hello is how a standing keeper introduces itself.
type hello struct {
	Protocol  int         `json:"protocol"`
	Installed []Installed `json:"installed,omitempty"`
}

// protocol is the number of what is said over the wire: a standing keeper may be
// of another version than who asks it.
const protocol = 1

// errorKind carries what callers decide by.
type errorKind string

const (
	kindNothing   errorKind = "nothing-listens"
	kindNoBackend errorKind = "no-backend"
	kindLeaving   errorKind = "leaving"
)

// maxMessage bounds a message in bytes.
const maxMessage = 64 << 10

// maxRights is how many files one message brings at most (SCM_MAX_FD, unix(7)).
const maxRights = 253

// keeperFD is the keeper's end of the socket: the first extra file of exec.Cmd.
// The locks come behind it.
const keeperFD = 3
