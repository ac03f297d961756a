// Package config reads one YAML file, the environment and the command line's flags into
// one Config. Unknown keys are refused with their line and column. Every value is
// checked before the agent starts.
package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/docker/go-units"
	"github.com/goccy/go-yaml"

	"holdfast"
	"holdfast/internal/hosts/doctor/rotation"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/experiment"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/sessions/gateway"
	"holdfast/internal/sessions/preempt"
)

// DefaultPath is the file that is read if no file is named; it may be missing.
const DefaultPath = "/etc/holdfast/holdfast.yaml"

// Config is the configuration of the agent. Durations are written as "30s", sizes as
// "512MiB".
type Config struct {
	Node      string          `yaml:"node"`     // id of this host; default: its host name
	DataDir   string          `yaml:"data_dir"` // the lease's id, the embedded store and other files
	RunDir    string          `yaml:"run_dir"`  // files that must not survive a boot of the host
	Log       Log             `yaml:"log"`
	Engine    Engine          `yaml:"engine"`
	Store     Store           `yaml:"store"`
	Fleet     Fleet           `yaml:"fleet"`
	Gateway   Gateway         `yaml:"gateway"`
	API       API             `yaml:"api"`
	E2B       E2B             `yaml:"e2b"`
	Sessions  Sessions        `yaml:"sessions"`
	Drain     Drain           `yaml:"drain"`
	Spinup    spinup.Config   `yaml:"spinup"`
	Images    prefetch.Config `yaml:"images"`
	GC        gc.Config       `yaml:"gc"`
	Doctor    Doctor          `yaml:"doctor"`
	Preempt   preempt.Config  `yaml:"preempt"`
	Moving    Moving          `yaml:"moving"`
	Templates []Template      `yaml:"templates"`
	// Experiments are changes that a part of the sessions or nodes tries.
	Experiments []Experiment `yaml:"experiments"`

	NodeGiven bool `yaml:"-"` // Node is in the configuration, and not only the host's name
}

// Log is the format of the agent's log on its standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text or json
}

// Engine is the container engine to use.
type Engine struct {
	Name string `yaml:"name"` // docker or containerd
	Host string `yaml:"host"` // unix:///path or tcp://host:port; default: DOCKER_HOST, then Docker's socket; containerd's
	// Bridge is Holdfast's: with containerd of all containers, with Docker of those with
	// network: pooled.
	Bridge     string `yaml:"bridge"`
	Subnet     string `yaml:"subnet"`     // of its addresses, a.b.c.d/n
	Masquerade bool   `yaml:"masquerade"` // NAT: containers on the bridge reach networks beyond the host with the host's address
	// The other keys are for containerd only.
	Namespace    string `yaml:"namespace"`     // containerd's namespace
	Snapshotter  string `yaml:"snapshotter"`   // makes containers' file systems
	CgroupParent string `yaml:"cgroup_parent"` // of their cgroups; default: / and the namespace
	// Runtimes are programs with the command line of runc, by the names that templates
	// use.
	Runtimes map[string]string `yaml:"runtimes"`
}

// The values of Engine.Name.
const (
	Docker     = "docker"
	Containerd = "containerd"
)

// Store is the store of ownership: embedded if Endpoints is empty.
type Store struct {
	Endpoints    []string `yaml:"endpoints"`
	CAFile       string   `yaml:"ca_file"` // PEM
	CertFile     string   `yaml:"cert_file"`
	KeyFile      string   `yaml:"key_file"`
	Username     string   `yaml:"username"`
	PasswordFile string   `yaml:"password_file"`
	TraceFile    string   `yaml:"trace_file"` // file with every call to the store, for debugging; "" is none
	// Timing of the node's lease. It only matters in a shared store: no other node can
	// take over from an embedded one.
	Renew      time.Duration `yaml:"renew"`
	Fence      time.Duration `yaml:"fence"`
	KillBudget time.Duration `yaml:"kill_budget"`
	TTL        time.Duration `yaml:"ttl"`
}

// Timing returns the store's timing in the type of the root package.
func (s Store) Timing() holdfast.Timing {
	return holdfast.Timing{Renew: s.Renew, Fence: s.Fence, KillBudget: s.KillBudget, TTL: s.TTL}
}

// Fleet is the connection to the nodes that share the store.
type Fleet struct {
	Listen       string `yaml:"listen"`       // host:port for the other nodes; "" accepts no connections
	Advertise    string `yaml:"advertise"`    // host:port for their connections; default: Listen
	Certificates string `yaml:"certificates"` // directory with ca.pem, node.pem and node.key
}

// Gateway is the listener for clients.
type Gateway struct {
	Listen string `yaml:"listen"`
	// URL is the address of a session for browsers, with KeyInURL in place of its key.
	// With "" it is derived from the address of the dashboard.
	URL            string `yaml:"url"`
	gateway.Config `yaml:",inline"`
}

// KeyInURL stands for a session's key in Gateway.URL.
const KeyInURL = "{key}"

// API is the listener of the agent's API.
type API struct {
	Socket    string `yaml:"socket"` // unix socket, root only
	Listen    string `yaml:"listen"` // TCP; "" for none
	CertFile  string `yaml:"cert_file"`
	KeyFile   string `yaml:"key_file"`
	TokenFile string `yaml:"token_file"` // file with bearer tokens for all routes
	// ReadTokenFile is a file with bearer tokens for reading. Without either file TCP
	// is read-only and loopback only.
	ReadTokenFile string `yaml:"read_token_file"`
	Dashboard     bool   `yaml:"dashboard"` // web pages, beside the API on TCP
}

// Sessions limits the resources of sessions.
type Sessions struct {
	IdleStop  time.Duration `yaml:"idle_stop"` // stop a session after this time without a connection or a command; 0 is never
	Boots     int           `yaml:"boots"`     // containers that start concurrently
	Max       int           `yaml:"max"`       // sessions on this node; 0 is no limit
	Snapshots int           `yaml:"snapshots"` // concurrent snapshot commands; 0 is one for each CPU
	Networks  int           `yaml:"networks"`  // ready networks to keep; 0 is none
}

// Drain has the defaults of a drain.
type Drain struct {
	Budget      time.Duration `yaml:"budget"`
	PauseEngine bool          `yaml:"pause_engine"` // pause the engine while the containers die
}

// Doctor is the part of the doctor that runs in the agent, and what it may do.
type Doctor struct {
	Watch    watch.Config    `yaml:",inline"`
	Rotation rotation.Config `yaml:",inline"`
	// Cures are the cures that the agent carries out by itself; none by default.
	Cures []schedule.Entry `yaml:"cures"`
	Role  string           `yaml:"role"` // the host's purpose: baselines are kept by kernel and role
	// Proc and Sys are the mount points of the host's procfs and sysfs.
	Proc string `yaml:"proc"`
	Sys  string `yaml:"sys"`
}

// Template describes the container of a session; the first template is the default.
type Template struct {
	Name       string            `yaml:"name"`
	Image      string            `yaml:"image"`
	Command    []string          `yaml:"command"`
	Env        map[string]string `yaml:"env"`
	Mounts     []Mount           `yaml:"mounts"`
	Memory     Bytes             `yaml:"memory"`
	CPUs       float64           `yaml:"cpus"`
	PIDs       int64             `yaml:"pids"`
	Port       int               `yaml:"port"`
	Ports      holdfast.Ports    `yaml:"ports"` // that clients may reach beside port; default: none
	Ready      Ready             `yaml:"ready"`
	Warm       int               `yaml:"warm"`       // maximum number of containers that wait for a session; 0 is none
	Network    string            `yaml:"network"`    // pooled (default): Holdfast's; or a network's name: bridge is the engine's own
	Init       *bool             `yaml:"init"`       // default true
	Privileges string            `yaml:"privileges"` // fixed (default) or gain: whether set-uid programs work
	Seccomp    string            `yaml:"seccomp"`    // file with a seccomp profile; default: the engine's
	Runtime    string            `yaml:"runtime"`    // that runs its containers; default: the engine's
	Handover   string            `yaml:"handover"`   // what another node gets: fresh (default), or memory
	Idle       string            `yaml:"idle"`       // what happens to a session without connections for sessions.idle_stop: stop (default), or suspend
	Fork       string            `yaml:"fork"`       // whether other sessions may start from the memory of its sessions: refused (default), or allowed
	Renew      Renew             `yaml:"renew"`
	Sleep      Sleep             `yaml:"sleep"`
	Priority   int               `yaml:"priority"` // of its memory, if not all of a host's memory can be saved: the lowest priority is lost first
	InitSteps  []InitStep        `yaml:"init_steps"`
	Snapshot   Snapshot          `yaml:"snapshot"`

	Replicas     int           `yaml:"replicas"`      // of a group with the template's name; 0: sessions have any key
	CaughtUp     CaughtUp      `yaml:"caught_up"`     // when a replica may get requests; default: as soon as it is ready
	DrainTimeout time.Duration `yaml:"drain_timeout"` // how long connections of a replica that is replaced may last, default 30s
	TCP          TCP           `yaml:"tcp"`           // address for clients of other protocols than HTTP; default: none

	WebSocket   string      `yaml:"websocket"` // what happens to clients' WebSockets when the session leaves: close (default) or keep
	KeptSockets KeptSockets `yaml:"kept_sockets"`
	Upgrades    []string    `yaml:"upgrades"` // other protocols than WebSocket to which clients may upgrade
}

// Sleep is when the container of a session that is not used is frozen.
type Sleep struct {
	After  time.Duration `yaml:"after"`   // time without a use; 0 (default) is never
	IdleBy string        `yaml:"idle_by"` // what is a use: connections (default), or data on them
	Wake   []string      `yaml:"wake"`    // times at which it wakes, in the form of cron
}

// Renew is a command that runs in a session that has started from the memory of another one,
// before it is ready.
type Renew struct {
	Command []string      `yaml:"command"`
	Timeout time.Duration `yaml:"timeout"` // default 10s
}

// InitStep is a container that runs to completion before a session's own.
type InitStep struct {
	Name    string            `yaml:"name"`
	Image   string            `yaml:"image"` // default: the template's
	Command []string          `yaml:"command"`
	Env     map[string]string `yaml:"env"`
	Timeout time.Duration     `yaml:"timeout"` // default 5m
	// RestoresDisk counts the step as the phase disk, not init.
	RestoresDisk bool `yaml:"restores_disk"`
}

// CaughtUp is a command in the container of a replica. It is repeated until its exit code
// is 0.
type CaughtUp struct {
	Command []string      `yaml:"command"`
	Timeout time.Duration `yaml:"timeout"` // for all repetitions, default 10m
}

// Snapshot is a command on the host that runs after a session has ended, and before
// another node can claim it.
type Snapshot struct {
	Command []string      `yaml:"command"`
	Timeout time.Duration `yaml:"timeout"` // default 10s
}

// Mount is one mount of a template.
type Mount struct {
	Type     string `yaml:"type"` // bind, volume, tmpfs
	Source   string `yaml:"source"`
	Target   string `yaml:"target"`
	ReadOnly bool   `yaml:"read_only"`
}

// Ready says when a container is ready: the HTTP path answers, or, without a path, the
// port accepts a connection.
type Ready struct {
	HTTP    string        `yaml:"http"`
	Timeout time.Duration `yaml:"timeout"`
}

// Bytes is a size, written as a number of bytes or with a unit: 512MiB.
type Bytes int64

// UnmarshalYAML implements yaml.BytesUnmarshaler.
func (b *Bytes) UnmarshalYAML(text []byte) error {
	var s string
	if err := yaml.Unmarshal(text, &s); err != nil {
		return err
	}
	n, err := units.RAMInBytes(s)
	if err != nil {
		return fmt.Errorf("%q is not a size such as 512MiB", s)
	}
	*b = Bytes(n)
	return nil
}

// Default returns the configuration without a file.
func Default() Config {
	t := holdfast.DefaultTiming()
	return Config{
		DataDir:  "/var/lib/holdfast",
		RunDir:   "/run/holdfast",
		Log:      Log{Level: "info", Format: "text"},
		Engine:   Engine{Name: Docker, Masquerade: true},
		Store:    Store{Renew: t.Renew, Fence: t.Fence, KillBudget: t.KillBudget, TTL: t.TTL},
		Fleet:    Fleet{Certificates: "/etc/holdfast/node"},
		Gateway:  Gateway{Listen: "127.0.0.1:7070", Config: gateway.DefaultConfig()},
		API:      API{Socket: "/run/holdfast/holdfast.sock", Listen: "127.0.0.1:7071", Dashboard: true},
		E2B:      E2B{Domain: "e2b.localhost:7073", User: "root"},
		Sessions: Sessions{IdleStop: 30 * time.Minute, Boots: 8, Max: 1000, Networks: 4},
		Drain:    Drain{Budget: 30 * time.Second, PauseEngine: true},
		Spinup:   spinup.DefaultConfig(),
		Images:   prefetch.DefaultConfig(),
		GC:       gc.DefaultConfig(),
		Moving:   defaultMoving(),
		Doctor:   Doctor{Watch: watch.DefaultConfig(), Rotation: rotation.DefaultConfig(), Proc: "/proc", Sys: "/sys"},
	}
}

// Load reads the file at path over the defaults and applies the overrides; path ""
// means DefaultPath, which may be missing. It makes all checks that need no running
// part. The error has a hint.
func Load(ctx context.Context, path string, over Overrides) (Config, error) {
	return loadPart(ctx, path, over, Config.Validate)
}

// LoadHost is Load for commands that only use the host. It does not check the store,
// gateway, API and templates.
func LoadHost(ctx context.Context, path string) (Config, error) {
	return loadPart(ctx, path, Overrides{}, Config.validateHost, Config.validateLimits)
}

// LoadCollector is LoadHost for a collector that serves its metrics on the address of
// an agent's API.
func LoadCollector(ctx context.Context, path string, over Overrides) (Config, error) {
	return loadPart(ctx, path, over, Config.ValidateCollector)
}

// loadPart is Load with the given checks.
func loadPart(ctx context.Context, path string, over Overrides, checks ...func(Config) error) (Config, error) {
	path, named := cmp.Or(path, DefaultPath), path != ""
	c, _, err := read(ctx, path, named, over)
	if err != nil {
		return c, err
	}
	var wrong []error
	for _, check := range checks {
		wrong = append(wrong, check(c))
	}
	return c, within(path+": ", errors.Join(wrong...))
}

// read reads the file, and completes the values. If the default file is missing, the
// text is nil and the defaults are used.
func read(ctx context.Context, path string, named bool, over Overrides) (c Config, text []byte, err error) {
	c = Default()
	text, err = os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		text = nil
	case err != nil:
		return c, nil, holdfast.WithHint(fmt.Errorf("reading the configuration: %w", err), "name the file with --config")
	default:
		if err := parse(ctx, text, &c); err != nil {
			return c, nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	over.apply(&c)
	return c, text, c.complete()
}

// complete sets the values that depend on the host.
func (c *Config) complete() error {
	c.NodeGiven = c.Node != ""
	if c.Node == "" {
		name, err := os.Hostname()
		if err != nil {
			return holdfast.WithHint(fmt.Errorf("finding this host's name: %w", err), "name the node with --node")
		}
		c.Node = name
	}
	if c.Fleet.Advertise == "" {
		c.Fleet.Advertise = c.Fleet.Listen
	}
	for i := range c.Experiments {
		c.Experiments[i].By = cmp.Or(c.Experiments[i].By, experiment.BySession)
	}
	for i := range c.Templates {
		t := &c.Templates[i]
		t.Ready.Timeout = cmp.Or(t.Ready.Timeout, 30*time.Second)
		t.Privileges = cmp.Or(t.Privileges, "fixed")
		t.Init = cmp.Or(t.Init, new(true))
		t.Snapshot.Timeout = cmp.Or(t.Snapshot.Timeout, 10*time.Second)
		t.defaultSockets()
		t.Handover = cmp.Or(t.Handover, "fresh")
		t.Fork, t.Renew.Timeout = cmp.Or(t.Fork, "refused"), cmp.Or(t.Renew.Timeout, 10*time.Second)
		t.Idle = cmp.Or(t.Idle, "stop")
		t.Sleep.IdleBy = cmp.Or(t.Sleep.IdleBy, "connections")
		t.CaughtUp.Timeout = cmp.Or(t.CaughtUp.Timeout, 10*time.Minute)
		t.DrainTimeout = cmp.Or(t.DrainTimeout, 30*time.Second)
		for j := range t.InitSteps {
			step := &t.InitSteps[j]
			step.Timeout = cmp.Or(step.Timeout, 5*time.Minute)
		}
	}
	c.Gateway.Ports = c.allowedPorts()
	return nil
}
