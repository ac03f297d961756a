// Package engine is the interface to container engines, as sessions, measuring and
// garbage collection need it. The implementations are engine/docker and
// engine/containerd; enginetest is the suite that every one passes against a real
// engine.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"syscall"
	"time"
)

// Errors that callers decide by. They come wrapped; test with errors.Is.
// "The engine does not answer" wraps holdfast.ErrEngine, "no such container"
// wraps holdfast.ErrNotFound.
var (
	ErrNoImage  = errors.New("no such image on this host")
	ErrConflict = errors.New("name is in use")
	// ErrUnsupported means that this engine lacks the feature, whatever its state.
	ErrUnsupported = errors.New("this engine does not support it")
	// ErrInterrupted means that the engine ended within the start of a container, which
	// cannot start any more. Another container can.
	ErrInterrupted = errors.New("the engine has interrupted the start of the container")
)

// Engine talks to one container engine on this host. All methods may be called
// from any goroutine and return when ctx is done.
type Engine interface {
	// Ping returns nil if the engine answers. It is the cheapest call that shows it.
	Ping(ctx context.Context) error

	// Info describes the engine. Docker asks its containerd for it, and starts the programs
	// runc and docker-init (moby, daemon/info_unix.go).
	Info(ctx context.Context) (Info, error)

	// ImageID resolves a reference to the id of an image on this host.
	// ErrNoImage.
	ImageID(ctx context.Context, ref string) (string, error)

	// ImageDigest returns the digest (sha256:…) by which a registry serves the image
	// with this name, or "" if it was not pulled from that repository. ErrNoImage.
	ImageDigest(ctx context.Context, name string) (string, error)

	// Pull fetches an image and yields the engine's progress, up to the first error.
	// A stream that ends without an error means that the image is present. Stopping
	// the iteration cancels the pull.
	Pull(ctx context.Context, ref string, o PullOptions) iter.Seq2[PullEvent, error]

	// Load imports the images of an archive, under the names that they have in it,
	// and returns when they are present. The archive is as `docker save` writes it:
	// manifest.json beside configurations and layers. Images that are already present
	// are no error.
	Load(ctx context.Context, archive io.Reader) error

	// Create makes a container and returns its full id. It does not pull. ErrNoImage,
	// ErrConflict.
	Create(ctx context.Context, s Spec) (string, error)

	// Start starts a created container and returns when its init runs.
	Start(ctx context.Context, id string) error

	// Wait returns the exit code of a started container when it has stopped. It may
	// be called again. A container that was never started is an error.
	Wait(ctx context.Context, id string) (exitCode int, err error)

	// Inspect returns all fields of one container, by id or name.
	Inspect(ctx context.Context, id string) (Container, error)

	// Stopped reports whether the engine has signalled a container that has ended: for a
	// client, or because the engine itself ends, as Docker does. A kill of the container's
	// processes by other means is none. It knows the recent past only.
	Stopped(ctx context.Context, id string) (bool, error)

	// List returns the containers that carry all the labels (a value of ""
	// matches any), running or not, oldest first. It fills ID, Name, Image,
	// Labels, State and Created only.
	List(ctx context.Context, labels map[string]string) ([]Container, error)

	// Watch yields the events of the whole engine until ctx is done; it does not end
	// before. The first event is a Gap. After each break of the connection to the
	// engine it yields another Gap, followed by the later events that the engine
	// still has. Those may be incomplete: Docker keeps its last 256 events, and none
	// over a restart. A reader that lists at every Gap misses nothing. The reader must
	// not block: Docker drops events for a reader that is more than about a thousand
	// behind (moby, daemon/events/events.go), and containerd buffers without bound.
	Watch(ctx context.Context, o WatchOptions) iter.Seq[Event]

	// Logs copies a container's output to w, both streams interleaved.
	Logs(ctx context.Context, id string, o LogOptions, w io.Writer) error

	// Exec runs a command in a running container and returns its exit code
	// once it has ended and its output is written.
	Exec(ctx context.Context, id string, e Exec) (int, error)

	// Kill sends SIGKILL through the engine and returns when the engine reports that
	// the container is dead. A container that does not run is no error. Holdfast
	// itself kills with internal/sessions/kill. This method is what benches compare
	// with, and the way to kill for engines in a VM.
	Kill(ctx context.Context, id string) error

	// Remove deletes a container with its anonymous volumes, and kills it first if it
	// runs. A container that is gone is no error.
	Remove(ctx context.Context, id string) error

	// SetRestartPolicy changes the policy of an existing container, so that the
	// engine does not restart it when it is killed (moby#11065).
	SetRestartPolicy(ctx context.Context, id string, p RestartPolicy) error

	// Run does the work that the engine leaves to its clients, until ctx is done:
	// with containerd restarts, logs and addresses, with Docker nothing. One process
	// on a host runs it, the agent.
	Run(ctx context.Context) error

	// Close frees the connections. No call may follow.
	Close() error
}

// Unanswered is the error of a call whose ctx ended before the engine answered. It wraps the
// error of ctx.
func Unanswered(ctx context.Context, doing string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: the engine has not answered in time: %w", doing, ctx.Err())
	}
	return fmt.Errorf("%s: %w", doing, ctx.Err())
}

// Names of engines with Docker's API.
const (
	Docker = "docker"
	Podman = "podman"
)

// Info describes an engine.
type Info struct {
	Name          string `json:"name"`    // docker, containerd; podman behind Docker's API
	Version       string `json:"version"` // 20.10.24
	APIVersion    string `json:"api_version"`
	StorageDriver string `json:"storage_driver"` // overlay2
	ImageStore    string `json:"image_store"`    // graphdriver, containerd or client: the form of a pull's progress
	Kernel        string `json:"kernel"`         // release, as in uname -r
	CgroupVersion string `json:"cgroup_version"` // 1 or 2, as the engine uses them
	DataRoot      string `json:"data_root"`
	Socket        string `json:"socket"` // path of the unix socket; "" for others
	Rootless      bool   `json:"rootless,omitempty"`
	Remapped      bool   `json:"remapped,omitempty"` // containers are in a user namespace (userns-remap)
}

// RestartPolicy says when the engine restarts a container.
type RestartPolicy string

// The policies.
const (
	RestartNo            RestartPolicy = "no"
	RestartAlways        RestartPolicy = "always"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
	RestartOnFailure     RestartPolicy = "on-failure"
)

// Spec describes a container to create.
type Spec struct {
	Name  string
	Image string
	// Platform is the required platform of the image, os/arch or os/arch/variant; an
	// image of another one is an error. "" is any.
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
	// Init runs a minimal init of the engine as pid 1, which reaps.
	Init bool
	// NoNewPrivileges forbids the container's processes to gain any.
	NoNewPrivileges bool
	// NoCapabilities removes all capabilities from the container's processes
	// (capabilities(7)), including those that the image's user would have.
	NoCapabilities bool
	// Capabilities are given to a container of root in any case, by their names without
	// CAP_.
	Capabilities []string
	// ReadOnlyRoot makes the container's root file system read-only.
	ReadOnlyRoot bool
	// Seccomp is the path of a file on this host with a seccomp profile, which is
	// read when the container is made; "" is the engine's default.
	Seccomp string
	// Runtime is the engine's name of the container runtime; "" is its default.
	Runtime string
	// Entrypoint replaces the image's, and then its command, too; empty: the
	// image's own.
	Entrypoint []string
	WorkDir    string // absolute path inside; "" is the image's
	// Aliases are names by which other containers on Network find it. Network is then
	// a created network, by name or id.
	Aliases []string
}

// Mount is one mount of a container.
type Mount struct {
	Type     string // bind, volume or tmpfs
	Source   string // host path (bind) or volume name; "" for tmpfs
	Target   string // absolute path inside
	ReadOnly bool
}

// LabelAddress is the label of a container that joins another one's network, with the
// container's own address: the other container was in another network namespace when
// this one started.
const LabelAddress = "holdfast.address"

// Container describes a container.
type Container struct {
	ID      string
	Name    string
	Image   string // the name given at create
	Labels  map[string]string
	State   string // created, running, paused, restarting, removing, exited, dead
	Created time.Time

	// From Inspect only:

	Pid        int      // of init in the host's pid namespace; 0 when it does not run
	PIDMode    string   // "", host, container:ID
	CgroupPath string   // the path under each cgroup mount, "" if unknown
	Network    string   // network mode
	Addresses  []string // IPs, IPv4 first; those of the joined container for container:ID, none if that is gone
	Published  []Published
	Restart    RestartPolicy
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int
	OOMKilled  bool
	Error      string
	Env        []string
	// Healthcheck means that the engine runs health checks in the container, and
	// reports them as events.
	Healthcheck bool
}

// Published is a TCP port that the host forwards to a container.
type Published struct {
	Host   netip.AddrPort // 0.0.0.0 and :: are all addresses
	Inside uint16
}

// Running reports whether the container has a live init.
func (c Container) Running() bool { return c.State == "running" || c.State == "paused" }

// WatchOptions select events of the whole engine.
type WatchOptions struct {
	Since   time.Time // begin with the engine's events since then; zero: now
	Actions []string  // only these; "health_status" is also "health_status: healthy". Empty: all
}

// The values of Event.Type that this package's users distinguish; engines have more.
const (
	OfContainer = "container"
	OfImage     = "image"
	OfNetwork   = "network"
)

// Event is one event of an engine.
type Event struct {
	Gap    bool   // list now: events before this one may be missing
	Type   string // of the object
	ID     string // of the container, the network …; of an image that was pulled its reference
	Action string // create, start, die, destroy, oom, …
	Labels map[string]string
	Name   string // of the container, network …
	Image  string // of a container, as it was named at create
	// Container is the container that was connected to a network, or disconnected.
	Container string
	Time      time.Time
	// ExitCode is that of a die event.
	ExitCode int
}

// PullEvent is one line of a pull's progress, as the engine reports it.
// internal/hosts/spinup measures by these.
type PullEvent struct {
	Time    time.Time // when it was read, from the monotonic clock
	Layer   string    // short id of the layer; "" for a line about the whole pull
	Status  string    // the engine's word: "Downloading", "Pull complete", …
	Current int64     // Units so far; 0 if not given
	Total   int64     // Units in all; 0 or less if unknown
	Units   string    // the unit of Current and Total: "" is bytes, "s" seconds
	// Times, if not nil, are the layer's exact times. Such an event is no line: it has no
	// Status, and comes after the last line of a pull that succeeded.
	Times *LayerTimes
}

// LayerTimes are the times of a layer as the engine's store has them, by the host's clock.
type LayerTimes struct {
	Size      int64     // compressed bytes
	From      int64     // bytes that an earlier, broken download had left; not fetched again
	Requested time.Time // right before the request to the registry; zero if unknown
	Received  time.Time // the last byte was written
	Stored    time.Time // the layer was verified and on the disk
	Empty     time.Time // its empty file system was there, right before the extraction; zero if unknown
	Extracted time.Time // its file system was complete
}

// PullOptions are options of Pull. The zero value is the engine's own platform,
// without a login.
type PullOptions struct {
	Platform string // os/arch or os/arch/variant
	Login    Login
	// LoginAt returns the login for another host that the engine's settings name for the
	// image's registry, such as a mirror; the zero value if there is none. It may be nil.
	// Engines that fetch images in another process do not call it.
	LoginAt func(ctx context.Context, host string) (Login, error)
}

// Login has the credentials for an image's registry: a user with a password, or one
// of the tokens. The zero value is anonymous.
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
	// ClientStore means that the adapter fetches and extracts layers itself. It
	// reports progress in Docker's words, at the time of each step.
	ClientStore = "client"
)

// LogOptions selects log lines.
type LogOptions struct {
	Tail       int // last n lines; below 0 is all
	Follow     bool
	Timestamps bool
}

// Exec describes a command to run in a container.
type Exec struct {
	Command []string
	TTY     bool
	// Env has NAME=VALUE, added to the container's environment.
	Env []string
	// Dir is the working directory, "" for the container's.
	Dir string
	// User is UID:GID in the container, "" for the container's. The command then has no
	// other groups.
	User string
	// Stdin, Stdout and Stderr may be nil. With TTY all output goes to
	// Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers the terminal's size, the first before the command
	// starts. May be nil.
	Resize <-chan Size
	// Resized, if not nil, is called with each size when the terminal has it, or when the
	// engine has refused it.
	Resized func(Size)
	// Started, if not nil, is called once when the engine has accepted the command.
	// The command of a missing program may be accepted, too.
	Started func(Signaler)
}

// Signaler sends a signal to the command of one Exec, from any goroutine. A command that
// has ended is an error that wraps holdfast.ErrNotFound. ErrUnsupported.
type Signaler func(ctx context.Context, sig syscall.Signal) error

// Size is a terminal's size in characters.
type Size struct {
	Rows, Cols uint
}
