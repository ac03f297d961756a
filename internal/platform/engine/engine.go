// Package engine is the contract for container engines, in the words that
// sessions, measuring and garbage collection need. The implementations are
// engine/docker and engine/containerd; enginetest is the suite that
// every one passes against a real engine.
package engine

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/netip"
	"time"
)

// Errors that callers decide by. They come wrapped; test with errors.Is.
// "The engine does not answer" wraps holdfast.ErrEngine, "no such container"
// wraps holdfast.ErrNotFound.
var (
	ErrNoImage  = errors.New("no such image on this host")
	ErrConflict = errors.New("name is in use")
	// ErrUnsupported says that this engine has no such thing, whatever its
	// state.
	ErrUnsupported = errors.New("this engine does not support it")
)

// Engine talks to one container engine on this host. All methods may be called
// from any goroutine and return when ctx is done.
type Engine interface {
	// Info says what the engine is. It is the cheapest call that proves
	// that the engine answers.
	Info(ctx context.Context) (Info, error)

	// ImageID resolves a reference to the id of an image on this host.
	// ErrNoImage.
	ImageID(ctx context.Context, ref string) (string, error)

	// Pull fetches an image and yields what the engine says on the way,
	// ending with the first error. A stream that ends without error means
	// that the image is there. Stopping the iteration cancels the pull.
	Pull(ctx context.Context, ref string, o PullOptions) iter.Seq2[PullEvent, error]

	// Load puts the images of an archive on this host, under the names that
	// they have in it, and returns when they are there. The archive is as
	// `docker save` writes it: manifest.json beside configurations and
	// layers. Images that are there already are no error.
	Load(ctx context.Context, archive io.Reader) error

	// Create makes a container and returns its full id. ErrNoImage,
	// ErrConflict. Nothing is pulled.
	Create(ctx context.Context, s Spec) (string, error)

	// Start starts a created container and returns when its init runs.
	Start(ctx context.Context, id string) error

	// Wait returns the exit code of a container that was started, once it
	// does not run; it may be asked again. A container that was never
	// started is an error.
	Wait(ctx context.Context, id string) (exitCode int, err error)

	// Inspect tells all about one container, by id or name.
	Inspect(ctx context.Context, id string) (Container, error)

	// List returns the containers that carry all the labels (a value of ""
	// matches any), running or not, oldest first. It fills ID, Name, Image,
	// Labels, State and Created only.
	List(ctx context.Context, labels map[string]string) ([]Container, error)

	// Events yields what happens to containers that carry all the labels
	// until ctx is done; then the sequence ends. It begins with a Gap, and
	// yields another after each break in the connection to the engine,
	// once it is subscribed again: the reader lists at every Gap and so
	// misses nothing. It never ends by itself.
	Events(ctx context.Context, labels map[string]string) iter.Seq[Event]

	// Watch yields what happens on the whole engine until ctx is done; then
	// the sequence ends. It begins with a Gap, and yields another after each
	// break in the connection to the engine, followed by what the engine
	// still knows of what came since then. That is not everything: Docker
	// keeps its last 256 events, and none when it is restarted. It never
	// ends by itself.
	Watch(ctx context.Context, o WatchOptions) iter.Seq[Event]

	// Logs copies a container's output to w, both streams interleaved.
	Logs(ctx context.Context, id string, o LogOptions, w io.Writer) error

	// Exec runs a command in a running container and returns its exit code
	// once it has ended and its output is written.
	Exec(ctx context.Context, id string, e Exec) (int, error)

	// Kill sends SIGKILL by way of the engine and returns when the engine
	// says that the container is dead. A container that does not run is no
	// error. Holdfast itself kills with internal/sessions/kill; this is the peer
	// that benches measure and the way for engines in a VM.
	Kill(ctx context.Context, id string) error

	// Remove deletes a container with its anonymous volumes, killing it
	// first if it runs. One that is gone is no error.
	Remove(ctx context.Context, id string) error

	// SetRestartPolicy changes the policy of an existing container, so that
	// the engine does not bring it back when it is killed (moby#11065).
	SetRestartPolicy(ctx context.Context, id string, p RestartPolicy) error

	// Run does what the engine has nobody for, until ctx is done: containerd
	// leaves restarts, logs and addresses to its clients. One process on a host
	// runs it, the agent; Docker needs none.
	Run(ctx context.Context) error

	// Close frees the connections. No call may follow.
	Close() error
}

// Info is what the engine says of itself.
type Info struct {
	Name          string `json:"name"`    // docker, containerd
	Version       string `json:"version"` // 20.10.24
	APIVersion    string `json:"api_version"`
	StorageDriver string `json:"storage_driver"` // overlay2
	ImageStore    string `json:"image_store"`    // graphdriver, containerd or client: how a pull tells what it does
	Kernel        string `json:"kernel"`         // release, as in uname -r
	CgroupVersion string `json:"cgroup_version"` // 1 or 2, as the engine uses them
	DataRoot      string `json:"data_root"`
	Socket        string `json:"socket"` // path of the unix socket; "" for others
}

// RestartPolicy is what the engine does when a container ends.
type RestartPolicy string

// The policies.
const (
	RestartNo            RestartPolicy = "no"
	RestartAlways        RestartPolicy = "always"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
	RestartOnFailure     RestartPolicy = "on-failure"
)

// Spec is a container to be made.
type Spec struct {
	Name  string
	Image string
	// Platform is what the image has to be of, os/arch or os/arch/variant; one
	// of another is an error. "" is any.
	Platform string
	Command  []string // empty: the image's own
	Env      []string // KEY=value
	Labels   map[string]string
	Hostname string
	Mounts   []Mount
	Network  string // a network's name (or ErrUnsupported), "none", "host", or "container:ID"; "" and "bridge" are the engine's default
	PIDMode  string // "", "host" or "container:ID"
	Restart  RestartPolicy
	Memory   int64   // bytes, 0 is no limit
	CPUs     float64 // 0 is no limit
	PIDs     int64   // 0 is no limit
	// Init runs a minimal init of the engine's as pid 1, which reaps.
	Init bool
	// NoNewPrivileges forbids the container's processes to gain any.
	NoNewPrivileges bool
	// NoCapabilities takes all capabilities from the container's processes
	// (capabilities(7)), also those that the image's user would have.
	NoCapabilities bool
	// Seccomp is the path of a file on this host with a seccomp profile, which is
	// read when the container is made; "" is the engine's default.
	Seccomp string
	// Runtime is the name that the engine has for what runs the container; ""
	// is its default.
	Runtime string
	// Entrypoint replaces the image's, and then its command, too; empty: the
	// image's own.
	Entrypoint []string
	WorkDir    string // absolute path inside; "" is the image's
	// Aliases are names by which others on Network find it. Network is then
	// one that was made, by name or id.
	Aliases []string
}

// Mount is one mount of a container.
type Mount struct {
	Type     string // bind, volume or tmpfs
	Source   string // host path (bind) or volume name; "" for tmpfs
	Target   string // absolute path inside
	ReadOnly bool
}

// Container is what the engine knows of a container.
type Container struct {
	ID      string
	Name    string
	Image   string // as it was named at create
	Labels  map[string]string
	State   string // created, running, paused, restarting, removing, exited, dead
	Created time.Time

	// From Inspect only:

	Pid        int      // of init in the host's pid namespace; 0 when it does not run
	PIDMode    string   // "", host, container:ID
	CgroupPath string   // the path under each cgroup mount, "" where unknown
	Network    string   // network mode
	Addresses  []string // IPs, IPv4 first; those of the joined container for container:ID, none where that is gone
	Published  []Published
	Restart    RestartPolicy
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int
	OOMKilled  bool
	Error      string
	Env        []string
	// Healthcheck says that the engine asks the container how it is, and
	// tells so in events.
	Healthcheck bool
}

// Published is a TCP port of a container's that the host passes on to it.
type Published struct {
	Host   netip.AddrPort // 0.0.0.0 and :: are all addresses
	Inside uint16
}

// Running reports whether the container has a live init.
func (c Container) Running() bool { return c.State == "running" || c.State == "paused" }

// WatchOptions select events of the whole engine.
type WatchOptions struct {
	Since   time.Time // begin with what the engine knows since then; zero: now
	Actions []string  // only these; "health_status" is also "health_status: healthy". Empty: all
}

// The values of Event.Type that this package's users go by; engines have more.
const (
	OfContainer = "container"
	OfImage     = "image"
	OfNetwork   = "network"
)

// Event is one thing that happened.
type Event struct {
	Gap    bool   // list now: what happened before this is not known
	Type   string // of what it happened to
	ID     string // of the container, the network …; of an image that was pulled its reference
	Action string // create, start, die, destroy, oom, …
	Labels map[string]string
	Name   string // of the container, network …
	Image  string // of a container, as it was named at create
	// Container is who was connected to a network, or disconnected.
	Container string
	Time      time.Time
	// ExitCode is of a die.
	ExitCode int
}

// PullEvent is one line of a pull's stream, unaltered in meaning: measuring is
// internal/hosts/spinup's job.
type PullEvent struct {
	Time    time.Time // when it was read, from the monotonic clock
	Layer   string    // short id of the layer; "" for a line about the whole pull
	Status  string    // the engine's word: "Downloading", "Pull complete", …
	Current int64     // Units so far; 0 where not given
	Total   int64     // Units in all; 0 or less where the engine does not know
	Units   string    // what Current and Total count: "" is bytes, "s" seconds
}

// PullOptions say how an image is fetched. The zero value is the engine's own
// platform, without a login.
type PullOptions struct {
	Platform string // os/arch or os/arch/variant
	Login    Login
}

// Login is for the registry that an image comes from. A password or one of the
// tokens goes with it; the zero value is anonymous.
type Login struct {
	Username      string
	Password      string
	IdentityToken string // to be exchanged at the registry's token service
	RegistryToken string // a bearer token for the registry itself
	Server        string // host[:port] of the registry
}

// The values of Info.ImageStore.
const (
	GraphDriver     = "graphdriver"
	ContainerdStore = "containerd"
	// ClientStore is an engine whose adapter fetches and extracts by itself, and
	// tells of it in Docker's words but as it happens.
	ClientStore = "client"
)

// LogOptions selects log lines.
type LogOptions struct {
	Tail       int // last n lines; below 0 is all
	Follow     bool
	Timestamps bool
}

// Exec is a command to run in a container.
type Exec struct {
	Command []string
	TTY     bool
	// Stdin, Stdout and Stderr may be nil. With TTY all output goes to
	// Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers the terminal's size, the first before the command
	// starts. May be nil.
	Resize <-chan Size
}

// Size is a terminal's size in characters.
type Size struct {
	Rows, Cols uint
}
