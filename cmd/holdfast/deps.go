package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench"
	pages "holdfast/bench/dashboard"
	"holdfast/bench/fleet"
	"holdfast/bench/kubernetes"
	"holdfast/bench/move"
	"holdfast/bench/reload"
	"holdfast/bench/scale"
	"holdfast/internal/agent"
	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/internal/hosts/protect/plug"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/hook"
	"holdfast/test/lab"
	"holdfast/test/lab/echoserver"
)

// Roles that other processes of this binary play.
const (
	roleGuardian     = "guardian"
	roleDeadman      = "deadman"
	roleHook         = "hook"
	roleJobWatcher   = "job-watcher"
	roleKeeper       = "keeper"
	roleGatewayChild = "bench-gateway-child"
	roleDirectory    = "bench-directory"
	roleDoctorLoad   = "bench-doctor-load"
	roleDoctorFold   = "bench-doctor-fold"
	roleCureReader   = "bench-cure-reader"
	roleCureVictim   = "bench-cure-victim"
)

// deps joins the command line to the parts that are no calls of an agent.
func deps() cli.Deps {
	return cli.Deps{
		Version:     buildVersion(),
		AgentFlags:  agentFlags,
		ConfigFlags: configFlags,
		CheckFiles:  agent.CheckFiles,
		RunAgent:    runAgent,
		AgentSocket: socketOf,
		DrainEngine: drainEngine,
		OpenLocal:   openLocal,
		OpenEngine:  openEngine,
		Host:        thisHost,
		JobWatcher:  self(roleJobWatcher),
		Keeper:      self(roleKeeper),
		GC:          cli.GCDeps{Open: openCollector, Serve: serveCollector},
		Examine:     examine,
		Drill:       makeDrill,
		Cures:       cli.CureDeps{Run: runCure, Kubepods: kubepods, Give: giveSeccomp},
		Record:      record,
		Hidden: map[string]func(context.Context, []string) error{
			roleGuardian:    runGuardian,
			roleDeadman:     runDeadman,
			roleHook:        runHook,
			roleJobWatcher:  runJobWatcher,
			roleKeeper:      runKeeper,
			probe.RoleAlloc: func(_ context.Context, args []string) error { return probe.Alloc(args, os.Stdout) },
			drill.Role:      drill.Work,
			plug.RoleWatcher: func(context.Context, []string) error {
				if plug.Watch() != 0 {
					return cli.Exit(1)
				}
				return nil
			},
			roleCureVictim: func(_ context.Context, args []string) error { return bench.CureVictim(args, os.Stdout) },
			roleCureReader: func(ctx context.Context, args []string) error { return bench.CureReader(ctx, args, os.Stdout) },
			roleGatewayChild: func(ctx context.Context, args []string) error {
				return bench.GatewayChild(ctx, args, os.Stdin, os.Stdout)
			},
			fleet.RoleSession: func(ctx context.Context, _ []string) error { return echoserver.Run(ctx, ":8080") },
			fleet.RoleMember: func(ctx context.Context, args []string) error {
				return fleet.Member(ctx, args, os.Stdin, os.Stdout)
			},
			fleet.RoleBroken: runBrokenAgent,
			move.RoleShell:   move.Shell,
			roleDoctorLoad: func(ctx context.Context, args []string) error {
				return bench.DoctorLoad(ctx, args, os.Stdin, os.Stdout)
			},
			roleDoctorFold: func(ctx context.Context, args []string) error {
				return bench.DoctorFold(ctx, args, os.Stdin, os.Stdout)
			},
			roleDirectory: func(ctx context.Context, args []string) error {
				return scale.MeasureDirectory(ctx, args, os.Stdout)
			},
		},
		Benches: benches(),
	}
}

// thisHost is what the host's configuration file says to commands that do without
// an agent.
func thisHost(ctx context.Context) (cli.Host, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return cli.Host{}, err
	}
	return cli.Host{DataDir: c.DataDir, RunDir: c.RunDir, Spinup: c.Spinup, Node: c.Node, Role: c.Doctor.Role}, nil
}

func buildVersion() api.Version {
	v := api.BuildVersion()
	if version != "" {
		v.Version = version
	}
	return v
}

// self is the command that plays a role of this binary. The file may have been
// replaced by an upgrade; the kernel's link leads to what runs.
func self(role ...string) []string { return append([]string{"/proc/self/exe"}, role...) }

// runGuardian is a guardian's whole life.
func runGuardian(_ context.Context, args []string) error {
	dir := ""
	if len(args) > 0 {
		dir = args[0]
	}
	if guardian.Main(dir, slog.New(slog.NewTextHandler(os.Stderr, nil))) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// runDeadman is a deadman's whole life.
func runDeadman(_ context.Context, args []string) error {
	if len(args) != 1 {
		return cli.Exit(2) // an agent starts it, nobody else
	}
	if deadman.Main(args[0], os.Stderr) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// runHook is the whole life of a snapshot command's keeper.
func runHook(_ context.Context, args []string) error {
	if hook.Main(args) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// openEngine connects to the engine that the configuration names.
func openEngine(ctx context.Context) (cli.Inspector, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return nil, err
	}
	return agent.OpenEngine(ctx, c)
}

// runKeeper is a keeper's whole life.
func runKeeper(_ context.Context, args []string) error {
	if protect.Main(args, builtin.Backends(), slog.New(slog.NewTextHandler(os.Stderr, nil))) != 0 {
		return cli.Exit(1)
	}
	return nil
}

func benches() []cli.Bench {
	return []cli.Bench{
		{
			Name: "kill", Short: "Kill many containers at once, with docker kill and with Holdfast", Example: "holdfast bench kill -n 200",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.KillOptions{Guardian: self(roleGuardian, "")}
				f.IntVarP(&o.N, "number", "n", 200, "containers to kill at once")
				f.IntVar(&o.Rounds, "rounds", 1, "times that each way of killing is measured")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.Kill(ctx, o)
				})
			},
		},
		{
			Name: "boot", Short: "Boot sessions to the first byte, with and without pools, beside the engine's own create and start", Example: "holdfast bench boot -n 50",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.BootOptions{Agent: self("agent"), Server: []string{fleet.RoleSession}}
				f.IntVarP(&o.N, "number", "n", 50, "boots of each kind")
				f.IntVar(&o.Claims, "claims", 200, "sessions that come to a pool of as many warm containers; 0: none")
				f.Float64Var(&o.Rate, "rate", 20, "of them a second")
				f.IntVar(&o.Burst, "burst", 100, "sessions that are asked for at once, with some warm containers and with none; 0: none")
				f.IntVar(&o.Warm, "warm", 20, "warm containers that a burst comes to")
				f.IntVar(&o.BurstRounds, "rounds", 3, "bursts of each kind, in turns")
				f.IntVar(&o.Memory, "memory", 24, "ready networks, and warm containers, whose memory is measured; 0: none")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.Boot(ctx, o)
				})
			},
		},
		{
			Name: "cure-memcg", Short: "Free dead memory cgroups beside living page cache, with the gentle squeeze and by emptying all", Example: "holdfast bench cure-memcg",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.CureOptions{Worker: self(drill.Role), Reader: self(roleCureReader), Guardian: self(roleGuardian)}
				f.IntVarP(&o.Groups, "number", "n", 20_000, "dead groups")
				f.IntVar(&o.Cache, "cache", 256, "MiB of living page cache")
				return checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.CureMemcg(ctx, o)
				})
			},
		},
		{
			Name: "cure-fadvise", Short: "What a storm of posix_fadvise does to a victim, before and after its container has the seccomp profile", Example: "holdfast bench cure-fadvise",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.FadviseOptions{Victim: roleCureVictim}
				f.IntVar(&o.Rounds, "rounds", 5, "measurements of each way")
				f.DurationVar(&o.Duration, "duration", 5*time.Second, "of one measurement")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					var err error
					if o.Program, err = os.Executable(); err != nil { // a container cannot go by /proc/self
						return bench.Result{}, err
					}
					o.Progress = progress
					return bench.CureFadvise(ctx, o)
				})
			},
		},
		{
			Name: "gc", Short: "Creates while images are removed, beside prune and a collector without pauses", Example: "holdfast bench gc --plot gc.html",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.GCOptions
				f.BoolVar(&o.Pressure, "pressure", false, "instead: whether the disk stays under its critical mark while spin-ups fill it without a pause")
				f.IntVar(&o.Images, "images", 6, "images that are removed in each way")
				f.IntVar(&o.Files, "files", 0, "files of each image (default 8000, with --locked 20000, with --pressure 250)")
				f.Float64Var(&o.Rate, "rate", 0, "creates per second (default 4, with --pressure 2)")
				f.DurationVar(&o.Duration, "duration", 0, "of the creates in each way, at least (default 1m, with --pressure 10m)")
				f.StringVar(&o.Plot, "plot", "", "write the latencies to this HTML file")
				f.IntVar(&o.Rounds, "rounds", 3, "how often creates on an idle engine and beside Holdfast's collecting are measured, in turns")
				f.BoolVar(&o.Locked, "locked", false, "instead: how long the engine takes for the removal of one image, linked away before or not")
				f.IntVar(&o.Pairs, "pairs", 3, "with --locked: pairs of images")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.GC(ctx, o)
				})
			},
		},
		{
			Name: "pull", Short: "Pull an image from a registry on loopback, with docker pull and with Holdfast", Example: "holdfast bench pull -n 15",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.PullOptions{Holdfast: self("pull")}
				f.IntVarP(&o.N, "number", "n", 15, "pulls of each kind")
				f.IntVar(&o.Size, "size", 64, "MiB that the image has")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.Pull(ctx, o)
				})
			},
		},
		{
			Name: "run", Short: "Bring up a job of four images that are not there, with docker-compose and with Holdfast", Example: "holdfast bench run -n 10 --rate 60",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.RunOptions{Holdfast: self("run")}
				f.IntVarP(&o.N, "number", "n", 10, "jobs of each kind")
				f.IntVar(&o.Size, "size", 32, "MiB of each image")
				f.Float64Var(&o.Rate, "rate", 0, "MiB/s that the registry gives, 0 for all it can")
				return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.Run(ctx, o)
				})
			},
		},
		{
			Name: "gateway", Short: "Echo over WebSockets through the gateway, beside nginx and no proxy", Example: "holdfast bench gateway",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.GatewayOptions{Child: self(roleGatewayChild), Sizes: []int{64, 16384}}
				f.IntVar(&o.Conns, "connections", 100, "WebSockets at once")
				f.IntVar(&o.Rounds, "rounds", 5, "measurements of each way and size")
				f.DurationVar(&o.Duration, "duration", 2*time.Second, "of one measurement")
				return checked(func() error { return o.Check() }, func(ctx context.Context, _ io.Writer) (bench.Result, error) {
					return bench.Gateway(ctx, o)
				})
			},
		},
		{
			Name: "fleet", Short: "Drain, kill and cut off nodes of a fleet under clients who connect, beside the engine's own create and start",
			Example: "holdfast bench fleet -n 3 --sessions 60 --rate 50 --chaos mixed",
			Setup:   fleetBench,
		},
		{
			Name: "move", Short: "Sessions that go on on another node, memory and socket and all, beside a cold boot of the same template",
			Example: "holdfast bench move -n 20 --write docs/moving.md",
			Setup:   moveBench,
		},
		{
			Name: "doctor", Short: "Record what all CPUs do, with perf and with Holdfast, and what that costs a load", Example: "holdfast bench doctor --rounds 3",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.DoctorOptions{Record: self("doctor", "record"), Load: self(roleDoctorLoad), Fold: self(roleDoctorFold)}
				f.DurationVar(&o.For, "for", 30*time.Second, "of one recording")
				f.IntVar(&o.Hz, "hz", 99, "samples of each busy CPU per second")
				f.IntVar(&o.Rounds, "rounds", 3, "recordings of each kind")
				f.IntVar(&o.Pairs, "pairs", 6, "windows with a recording, between windows without")
				f.DurationVar(&o.Window, "window", 5*time.Second, "of one such window")
				return checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return bench.Doctor(ctx, o)
				})
			},
		},
		{
			Name: "reload", Short: "Reload and restart HAProxy under load, with nothing against what that does, with others' ways and with protect",
			Example: "holdfast bench reload",
			Setup:   reloadBench,
		},
		{
			Name: "truth", Short: "Every drill, and healthy hosts: does the doctor name each, and nothing where nothing is wrong",
			Example: "holdfast bench truth --runs 20 --write docs/doctor.md",
			Setup:   truthBench,
		},
		{
			Name: "dashboard", Short: "The dashboard over a large made-up fleet: size, server time, and what open pages cost", Example: "holdfast bench dashboard",
			Setup: func(f *pflag.FlagSet) experiment {
				var o pages.Options
				f.IntVar(&o.Nodes, "nodes", 1000, "nodes")
				f.IntVar(&o.Sessions, "sessions", 10000, "sessions")
				f.IntVarP(&o.Loads, "loads", "n", 200, "loads of each page")
				f.IntVar(&o.Open, "open", 4, "pages that are kept up to date, up to 256")
				f.DurationVar(&o.For, "for", 30*time.Second, "how long they are")
				return checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return pages.Run(ctx, o)
				})
			},
		},
		{
			Name: "kubernetes", Short: "What agents cost a Kubernetes cluster: thousands of them, simulated, on a real API server",
			Example: `holdfast bench kubernetes --apiserver "$(packaging/dev/kube.sh)"`,
			Setup:   kubernetesBench,
		},
		{
			Name: "scale", Short: "A simulated fleet on a real etcd, of which some nodes vanish", Example: "holdfast bench scale --nodes 200 --sessions 20000",
			Setup: func(f *pflag.FlagSet) experiment {
				o := scale.Options{Member: self(fleet.RoleMember), Directory: self(roleDirectory)}
				f.IntVar(&o.Nodes, "nodes", 100, "nodes")
				f.IntVar(&o.Sessions, "sessions", 10000, "sessions, spread over the nodes")
				f.Float64Var(&o.Lost, "lost", 0.05, "share of the nodes that vanish at once")
				f.IntVar(&o.Directories, "directories", 4, "nodes that keep a directory; the others ask these")
				f.IntVar(&o.Watchers, "watchers", 0, "watches that only count, beside those of the directories")
				f.DurationVar(&o.Boot, "boot", 250*time.Millisecond, "what a container takes to come up")
				f.DurationVar(&o.Steady, "steady", 20*time.Second, "how long the fleet is measured before the loss")
				return checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
					o.Progress = progress
					return scale.Run(ctx, o)
				})
			},
		},
	}
}

// kubernetesBench is `holdfast bench kubernetes`.
func kubernetesBench(f *pflag.FlagSet) experiment {
	o := kubernetes.Options{Member: self(fleet.RoleMember), Agent: self("agent")}
	f.IntVar(&o.Nodes, "nodes", 5000, "simulated nodes")
	f.DurationVar(&o.For, "for", 5*time.Minute, "how long the cluster is measured at rest, up to 30m")
	f.DurationVar(&o.Idle, "idle", 0, "how long an agent keeps a connection without a request; 0 is as agents do")
	f.StringVar(&o.APIServer, "apiserver", "", "path of a kube-apiserver")
	f.StringVar(&o.Manifests, "manifests", "deploy/kubernetes", "directory with who agents are and what they may do")
	return checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		o.Progress = progress
		return kubernetes.Run(ctx, o)
	})
}

func reloadBench(f *pflag.FlagSet) experiment {
	o := reload.Options{Protect: self("protect")}
	f.IntVarP(&o.Requests, "requests", "n", 20000, "requests of each run")
	f.Float64Var(&o.Rate, "rate", 1000, "clients that are due per second")
	modes := f.StringSlice("mode", nil, "only these modes, a list: nothing, syn-drop, handover, migrate, plug, nfqueue, park")
	f.DurationVar(&o.Drain, "drain", 0, "protect's --drain; 0 leaves it to protect")
	f.BoolVar(&o.Full, "full", false, "a million requests and over 1,500 reloads with nfqueue and park, 100,000 requests with the others")
	f.BoolVar(&o.Idle, "idle", false, "instead: requests per second with a port installed beside without, while nothing reloads")
	f.IntVar(&o.Pairs, "pairs", 30, "with --idle: how often both are measured, two seconds each time")
	f.BoolVar(&o.WithKills, "kills", false, "instead: how long clients wait when somebody of a protected restart is killed")
	f.StringVar(&o.Page, "html", "reload.html", "where the page with the plots is written; '' writes none")
	check := func() error {
		for _, m := range *modes {
			o.Modes = append(o.Modes, reload.Mode(m))
		}
		return o.Check()
	}
	return inLab(check, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		o.Progress = progress
		return reload.Measure(ctx, o)
	})
}

func fleetBench(f *pflag.FlagSet) experiment {
	var o fleet.Options
	f.IntVarP(&o.Agents, "number", "n", 3, "agents")
	f.IntVar(&o.Sessions, "sessions", 60, "sessions, each with a client who holds a connection")
	f.Float64Var(&o.Rate, "rate", 50, "clients that arrive per second")
	f.DurationVar(&o.For, "for", 3*time.Minute, "how long; longer where not every act has happened by then")
	f.DurationVar(&o.Every, "every", 10*time.Second, "from one act to the next")
	f.StringVar(&o.Chaos, "chaos", string(fleet.Notice), "what happens: none, mixed, or a list of notice, restart, agent-killed, gone, stopped, cut-short, cut-long, leader-lost, move, suspend")
	f.DurationVar(&o.TTL, "ttl", 3*time.Second, "life of the nodes' leases")
	f.Uint64Var(&o.Seed, "seed", 1, "of what is random")
	f.StringVar(&o.Dir, "dir", "", "leave what containers, nodes and etcd wrote in this empty directory")
	f.BoolVar(&o.Gather, "gather", false, "all sessions begin on one node")
	f.StringVar(&o.Pools, "pools", fleet.Pooled, "what nodes keep ready, one word for each, over and over: bridge, pooled, warm")
	f.StringVar(&o.Runsc, "runsc", "", "sessions run under gVisor, with this runsc, and take their memory along")
	f.BoolVar(&o.BreakFence, "break-fence", false, "nodes outlive their leases on purpose: the checks have to catch it")
	return inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		o.Progress = progress
		r, err := fleet.Run(ctx, o)
		return r.Result, err
	})
}

// experiment is a bench whose flags are parsed.
type experiment = func(context.Context, io.Writer) (bench.Result, error)

// checked refuses flags that cannot be before anything starts.
func checked(check func() error, run experiment) experiment {
	return func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		if err := check(); err != nil {
			return bench.Result{}, cli.Usage(err)
		}
		return run(ctx, progress)
	}
}

// inLab is checked for a bench on an engine of its own: the process that was
// started by hand only starts this binary once more in the lab and passes its end
// on.
func inLab(check func() error, run experiment) experiment {
	return checked(check, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		if lab.Inside() {
			return run(ctx, progress)
		}
		code, err := lab.Reenter()
		if err != nil {
			return bench.Result{}, err
		}
		return bench.Result{}, cli.Exit(code)
	})
}
