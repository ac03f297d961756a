package protect

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/child"
)

// Spec says what to hold, and how.
type Spec struct {
	Addresses []Address `json:"addresses"`
	Forwarded bool      `json:"forwarded,omitempty"`
	Overlap   bool      `json:"overlap,omitempty"`
	PIDs      []int     `json:"pids,omitempty"`
	// Backend is the backend to use; "" and Auto mean the best that works.
	Backend Name `json:"backend,omitempty"`
	// Limit is the maximum duration of the hold; it must be over 0.
	Limit time.Duration `json:"limit_ns"`
	// Ready is how the new server is asked before the release. The zero value does not
	// ask: a server that listens is ready.
	Ready ready.Check `json:"ready,omitzero"`
	// UDP says whether datagrams are held too. UDPFor limits for how long the datagrams of
	// known flows then go on to an old server that runs beside the new one.
	UDP    Flows         `json:"udp,omitempty"`
	UDPFor time.Duration `json:"udp_for_ns,omitempty"`
	// Gate delays the release until the restart is said to have ended (Keeper.Exited). A
	// listener before that may be another program's, such as that of `nginx -t`.
	Gate bool `json:"gate,omitempty"`
}

// Refusal is the reason why a backend does not work.
type Refusal struct {
	Backend Name   `json:"backend"`
	Why     string `json:"why"`
}

// Began describes a hold that has begun.
type Began struct {
	Backend Name          `json:"backend"`
	Took    time.Duration `json:"took_ns"`
	// Refused are the better backends that did not work.
	Refused []Refusal `json:"refused,omitempty"`
	// Residue is what must be tidied up if the keeper is killed.
	Residue *Residue `json:"leaves,omitempty"`
	// Asked are the questions to the new server.
	Asked []Asked `json:"asked,omitempty"`
}

// Residue is the kernel state of a killed keeper.
type Residue struct {
	Backend Name      `json:"backend"`
	What    string    `json:"what"`
	Of      []Address `json:"of"`
}

// Released describes a hold that has ended.
type Released struct {
	Reason Reason `json:"reason"`
	Stats  Stats  `json:"stats"`
	// Took is the duration of the release.
	Took time.Duration `json:"took_ns"`
	// Held is the time from the start of the hold to the release of its last
	// connection.
	Held time.Duration `json:"held_ns"`
	// Listening reports whether a server listens.
	Listening bool `json:"listening"`
	// Ready is how the new server was asked; nil: it was not to be asked.
	Ready *Readiness `json:"ready,omitempty"`
	// Datagrams is what became of held datagrams; nil: none were to be held.
	Datagrams *DatagramStats `json:"datagrams,omitempty"`
	// Error says what could not be tidied up.
	Error string `json:"error,omitempty"`
}

// op names a request and its answer.
type op string

const (
	opProbe    op = "probe"    // which backends work
	opHold     op = "hold"     // begin
	opDrain    op = "drain"    // wait for the old server's clients
	opExited   op = "exited"   // the command has ended; not answered
	opTidy     op = "tidy"     // undo what a killed keeper left
	opRelease  op = "release"  // end now; answered by opReleased only
	opReleased op = "released" // an answer without a request
	opRun      op = "run"      // an answer without a request: run the program of a check
	opRan      op = "ran"      // how it ended; not answered

	// Only requested of standing keepers.
	opHello   op = "hello"   // what is installed
	opInstall op = "install" // prepare for exactly these ports
	opStatus  op = "status"  // state of the keeper
	opQuit    op = "quit"    // end when nothing is held
)

// request is a message to the keeper.
type request struct {
	Op     op            `json:"op"`
	Spec   Spec          `json:"spec,omitzero"`
	Limit  time.Duration `json:"limit_ns,omitempty"`
	Killed bool          `json:"killed,omitempty"`
	Left   Residue       `json:"left,omitzero"`
	Ran    ran           `json:"ran,omitzero"`
	// Settled is for opDrain: the ports on whose accepted connections another process
	// waits.
	Settled []uint16 `json:"settled,omitempty"`
	// Installed is for opInstall.
	Installed []Installed `json:"installed,omitempty"`

	// locks came with an opHold, see KeeperOptions.
	locks []*os.File
}

// close closes the files that came with the request.
func (r request) close() {
	for _, f := range r.locks {
		f.Close()
	}
}

// answer is a message from the keeper.
type answer struct {
	Op       op        `json:"op"`
	Error    string    `json:"error,omitempty"`
	Kind     errorKind `json:"kind,omitempty"`
	Probes   []Refusal `json:"probes,omitempty"` // Why is "" for one that works
	Began    Began     `json:"began,omitzero"`
	Drained  Drained   `json:"drained,omitzero"`
	Released Released  `json:"released,omitzero"`
	Hello    hello     `json:"hello,omitzero"`
	Standing Standing  `json:"standing,omitzero"`
	Run      run       `json:"run,omitzero"`
}

// run makes the starter run the program of its check.
type run struct {
	Number int            `json:"number"` // for the answer
	At     netip.AddrPort `json:"at"`     // at which the program reaches the server
}

// ran is how that program ended.
type ran struct {
	Number int    `json:"number"`
	Error  string `json:"error,omitempty"` // "": the server is ready
}

// with returns a with the error that it reports; nil: none.
func (a answer) with(err error) answer {
	if err == nil {
		return a
	}
	a.Error = err.Error()
	for kind, is := range kinds() {
		if errors.Is(err, is) {
			a.Kind = kind
		}
	}
	return a
}

// err returns the error that the keeper reports.
func (a answer) err() error {
	switch is := kinds()[a.Kind]; {
	case a.Error == "":
		return nil
	case is != nil:
		return &keeperError{a.Error, is}
	}
	return errors.New(a.Error)
}

// keeperError is an error that the keeper sent.
type keeperError struct {
	msg string
	is  error
}

func (e *keeperError) Error() string { return e.msg }
func (e *keeperError) Unwrap() error { return e.is }

// hello is the first answer of a standing keeper.
type hello struct {
	Protocol  int         `json:"protocol"`
	Installed []Installed `json:"installed,omitempty"`
}

// protocol is the version of the wire protocol: a standing keeper and its
// client may be different versions of the program.
const protocol = 3

// errorKind identifies an error that callers check for.
type errorKind string

func kinds() map[errorKind]error {
	return map[errorKind]error{"nothing-listens": ErrNothingListens, "no-backend": ErrNoBackend, "leaving": errLeaving}
}

// maxMessage limits a message, in bytes.
const maxMessage = 64 << 10

// maxRights is the maximum number of files in one message (SCM_MAX_FD,
// unix(7)).
const maxRights = 253

// keeperFD is the keeper's end of the socket to its starter. The locks follow it.
const keeperFD = child.SocketFD
