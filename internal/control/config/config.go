// Package config turns one YAML file, the environment and the command line's
// flags into one Config. Unknown keys are refused with their line and column;
// every value is checked before anything starts.
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
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/sessions/gateway"
	"holdfast/internal/sessions/preempt"
)

// DefaultPath is read when no file is named; it may be missing.
const DefaultPath = "/etc/holdfast/holdfast.yaml"

// Config is everything that the agent can be told. Durations are written as
// "30s", sizes as "512MiB".
type Config struct {
	Node      string          `yaml:"node"`     // id of this host; default: its host name
	DataDir   string          `yaml:"data_dir"` // the lease's id and the embedded store
	RunDir    string          `yaml:"run_dir"`  // what must not survive a boot of the host
	Log       Log             `yaml:"log"`
	Engine    Engine          `yaml:"engine"`
	Store     Store           `yaml:"store"`
	Fleet     Fleet           `yaml:"fleet"`
	Gateway   Gateway         `yaml:"gateway"`
	API       API             `yaml:"api"`
	Sessions  Sessions        `yaml:"sessions"`
	Drain     Drain           `yaml:"drain"`
	Spinup    spinup.Config   `yaml:"spinup"`
	Images    prefetch.Config `yaml:"images"`
	GC        gc.Config       `yaml:"gc"`
	Doctor    Doctor          `yaml:"doctor"`
	Preempt   preempt.Config  `yaml:"preempt"`
	Moving    Moving          `yaml:"moving"`
	Templates []Template      `yaml:"templates"`

	NodeGiven bool `yaml:"-"` // Node was configured, and is not just the host's name
}

// Log says how the agent logs to its standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text or json
}

// Engine is the container engine to use.
type Engine struct {
	Name string `yaml:"name"` // docker or containerd
	Host string `yaml:"host"` // unix:///path or tcp://host:port; default: DOCKER_HOST, then Docker's socket; containerd's
	// The rest is for containerd only.
	Namespace    string `yaml:"namespace"`     // containerd's
	Snapshotter  string `yaml:"snapshotter"`   // makes containers' file systems
	Bridge       string `yaml:"bridge"`        // device that containers are connected to
	Subnet       string `yaml:"subnet"`        // of their addresses, a.b.c.d/n
	Masquerade   bool   `yaml:"masquerade"`    // containers reach what is beyond the host, with its address
	CgroupParent string `yaml:"cgroup_parent"` // of their cgroups; default: / and the namespace
	// Runtimes are programs that take runc's arguments, by the names that templates
	// have for them.
	Runtimes map[string]string `yaml:"runtimes"`
}

// The values of Engine.Name.
const (
	Docker     = "docker"
	Containerd = "containerd"
)

// Store is where ownership is kept: embedded when Endpoints is empty.
type Store struct {
	Endpoints    []string `yaml:"endpoints"`
	CAFile       string   `yaml:"ca_file"` // PEM
	CertFile     string   `yaml:"cert_file"`
	KeyFile      string   `yaml:"key_file"`
	Username     string   `yaml:"username"`
	PasswordFile string   `yaml:"password_file"`
	TraceFile    string   `yaml:"trace_file"` // every call to the store, for debugging; "" is none
	// Timing of the node's lease; it only matters in a store that others
	// share, because nobody can take over from an embedded one.
	Renew      time.Duration `yaml:"renew"`
	Fence      time.Duration `yaml:"fence"`
	KillBudget time.Duration `yaml:"kill_budget"`
	TTL        time.Duration `yaml:"ttl"`
}

// Timing is the store's timing as the rest of the program knows it.
func (s Store) Timing() holdfast.Timing {
	return holdfast.Timing{Renew: s.Renew, Fence: s.Fence, KillBudget: s.KillBudget, TTL: s.TTL}
}

// Fleet is where the nodes that share a store meet each other.
type Fleet struct {
	Listen       string `yaml:"listen"`       // host:port for the other nodes; "" takes nothing from them
	Advertise    string `yaml:"advertise"`    // host:port that they connect to; default: Listen
	Certificates string `yaml:"certificates"` // directory with ca.pem, node.pem and node.key
}

// Gateway is where clients connect.
type Gateway struct {
	Listen string `yaml:"listen"`
	// URL is where browsers open a session, with KeyInURL in the place of its
	// key; "" is by the address at which they reach the dashboard.
	URL            string `yaml:"url"`
	gateway.Config `yaml:",inline"`
}

// KeyInURL stands for a session's key in Gateway.URL.
const KeyInURL = "{key}"

// API is where people and programs ask the agent.
type API struct {
	Socket    string `yaml:"socket"` // unix socket, root only
	Listen    string `yaml:"listen"` // TCP; "" for none
	CertFile  string `yaml:"cert_file"`
	KeyFile   string `yaml:"key_file"`
	TokenFile string `yaml:"token_file"` // bearer tokens for everything
	// ReadTokenFile has bearer tokens that only look. Without either file
	// TCP is read-only and loopback only.
	ReadTokenFile string `yaml:"read_token_file"`
	Dashboard     bool   `yaml:"dashboard"` // pages for people, beside the API on TCP
}

// Sessions bounds what sessions may do to the host.
type Sessions struct {
	IdleStop  time.Duration `yaml:"idle_stop"` // stop a session after that long without a connection; 0 is never
	Boots     int           `yaml:"boots"`     // containers being started at once
	Max       int           `yaml:"max"`       // sessions on this node; 0 is no bound
	Snapshots int           `yaml:"snapshots"` // snapshot commands at once; 0 is one for each CPU
	Networks  int           `yaml:"networks"`  // networks kept ready for the next sessions; 0 is none
}

// Drain is how a drain is done unless the request says otherwise.
type Drain struct {
	Budget time.Duration `yaml:"budget"`
	Quiet  bool          `yaml:"quiet"` // stop the engine for the moment in which the containers die
}

// Doctor is the part of the doctor that is always on, and what it may do.
type Doctor struct {
	Watch    watch.Config    `yaml:",inline"`
	Rotation rotation.Config `yaml:",inline"`
	Role     string          `yaml:"role"` // what this host is for: baselines are kept by kernel and role
	// Proc and Sys are where the host's procfs and sysfs are mounted.
	Proc string `yaml:"proc"`
	Sys  string `yaml:"sys"`
}

// Template is how a session's container is made; the first is the default one.
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
	Ready      Ready             `yaml:"ready"`
	Warm       int               `yaml:"warm"`       // containers that wait for a session, at most; 0 is none
	Network    string            `yaml:"network"`    // pooled (default), or a network's name: bridge is the engine's own
	Init       *bool             `yaml:"init"`       // default true
	Privileges string            `yaml:"privileges"` // fixed (default) or gain: whether set-uid programs work
	Seccomp    string            `yaml:"seccomp"`    // file with a seccomp profile; default: the engine's
	Runtime    string            `yaml:"runtime"`    // that runs its containers; default: the engine's
	Handover   string            `yaml:"handover"`   // what of it another node gets: fresh (default), or memory
	Idle       string            `yaml:"idle"`       // what becomes of a session that nobody is connected to for sessions.idle_stop: stop (default), or suspend
	Priority   int               `yaml:"priority"`   // of its memory, where not all of a host's can be saved: what has less is lost first
	InitSteps  []InitStep        `yaml:"init_steps"`
	Snapshot   Snapshot          `yaml:"snapshot"`

	WebSocket   string      `yaml:"websocket"` // what becomes of clients' when the session leaves: close (default) or keep
	KeptSockets KeptSockets `yaml:"kept_sockets"`
}

// InitStep is a container that runs to completion before a session's own.
type InitStep struct {
	Name    string            `yaml:"name"`
	Image   string            `yaml:"image"` // default: the template's
	Command []string          `yaml:"command"`
	Env     map[string]string `yaml:"env"`
	Timeout time.Duration     `yaml:"timeout"` // default 5m
}

// Snapshot is a command on the host that runs when a session has ended, before
// anybody else can have it.
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

// Ready is when a container counts as ready: the HTTP path answers, or, without
// one, the port takes a connection.
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
		return fmt.Errorf("%q is no size such as 512MiB", s)
	}
	*b = Bytes(n)
	return nil
}

// Default is the configuration without a file.
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
		Sessions: Sessions{IdleStop: 30 * time.Minute, Boots: 8, Max: 1000, Networks: 4},
		Drain:    Drain{Budget: 30 * time.Second, Quiet: true},
		Spinup:   spinup.DefaultConfig(),
		Images:   prefetch.DefaultConfig(),
		GC:       gc.DefaultConfig(),
		Moving:   defaultMoving(),
		Doctor:   Doctor{Watch: watch.DefaultConfig(), Rotation: rotation.DefaultConfig(), Proc: "/proc", Sys: "/sys"},
	}
}

// Load reads the file at path over the defaults and applies the overrides; path
// "" means DefaultPath, which may be missing. It checks everything that can be
// checked without starting anything. The error is one that a person can act on,
// with a hint.
func Load(ctx context.Context, path string, over Overrides) (Config, error) {
	path, named := cmp.Or(path, DefaultPath), path != ""
	c, err := read(ctx, path, named, over)
	if err != nil {
		return c, err
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// LoadHost is Load for what only acts on the host, and for that without a look at
// what no drain needs: store, gateway, API and templates.
func LoadHost(ctx context.Context, path string) (Config, error) {
	return loadPart(ctx, path, Overrides{}, Config.validateHost, Config.validateLimits)
}

// LoadCollector is LoadHost for a collector that shows its figures where an agent
// has its API.
func LoadCollector(ctx context.Context, path string, over Overrides) (Config, error) {
	return loadPart(ctx, path, over, Config.ValidateCollector)
}

// loadPart is Load with other checks.
func loadPart(ctx context.Context, path string, over Overrides, checks ...func(Config) error) (Config, error) {
	path, named := cmp.Or(path, DefaultPath), path != ""
	c, err := read(ctx, path, named, over)
	if err != nil {
		return c, err
	}
	var wrong []error
	for _, check := range checks {
		wrong = append(wrong, check(c))
	}
	if err := errors.Join(wrong...); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// read reads the file, which may be missing where nobody named it, and fills in
// the rest.
func read(ctx context.Context, path string, named bool, over Overrides) (Config, error) {
	c := Default()
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		// The defaults will do, unless a check below misses something.
	case err != nil:
		return c, holdfast.WithHint(fmt.Errorf("reading the configuration: %w", err), "name the file with --config")
	default:
		if err := parse(ctx, text, &c); err != nil {
			return c, fmt.Errorf("%s: %w", path, err)
		}
	}
	over.apply(&c)
	return c, c.complete()
}

// complete fills in what depends on the host.
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
	for i := range c.Templates {
		t := &c.Templates[i]
		if t.Ready.Timeout == 0 {
			t.Ready.Timeout = 30 * time.Second
		}
		t.Privileges = cmp.Or(t.Privileges, "fixed")
		if t.Init == nil {
			yes := true
			t.Init = &yes
		}
		t.Snapshot.Timeout = cmp.Or(t.Snapshot.Timeout, 10*time.Second)
		t.defaultSockets()
		t.Handover = cmp.Or(t.Handover, "fresh")
		t.Idle = cmp.Or(t.Idle, "stop")
		for j := range t.InitSteps {
			step := &t.InitSteps[j]
			step.Timeout = cmp.Or(step.Timeout, 5*time.Minute)
		}
	}
	return nil
}
