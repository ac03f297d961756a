package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench"
	pages "holdfast/bench/dashboard"
	"holdfast/bench/fleet"
	"holdfast/bench/jobs"
	"holdfast/bench/kubernetes"
	"holdfast/bench/reload"
	"holdfast/bench/rig"
	"holdfast/bench/scale"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/doctor/drill"
)

// experiments are the commands of holdfast-bench.
func (p *programs) experiments() []cli.Experiment {
	return []cli.Experiment{
		{
			Name: "kill", Short: "Kill many containers at once, with docker kill and with Holdfast", Example: "holdfast bench kill -n 200",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.KillOptions
				f.IntVarP(&o.N, "number", "n", 200, "containers to kill at once")
				f.IntVar(&o.Rounds, "rounds", 1, "times that each way of killing is measured")
				f.StringVar(&o.Image, "image", bench.ImageNginx, "what the containers run: nginx, or sleep for two sleeping processes")
				f.BoolVar(&o.Trace, "trace", false, "instead: show where the time of one docker kill goes")
				dockerd(f, &o.Dockerd)
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Guardian = p.product("guardian", "")
					o.Progress = progress
					return bench.Kill(ctx, o)
				})
			},
		},
		{
			Name: "boot", Short: "Boot sessions to the first byte, with and without pools, beside the engine's own create and start", Example: "holdfast bench boot -n 50",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.BootOptions{}
				f.IntVarP(&o.N, "number", "n", 50, "boots of each kind")
				f.IntVar(&o.Claims, "claims", 200, "sessions that claim from a pool of as many warm containers; 0: none")
				f.Float64Var(&o.Rate, "rate", 20, "claims per second")
				f.IntVar(&o.Burst, "burst", 100, "sessions that are requested at once, with some warm containers and with none; 0: none")
				f.IntVar(&o.Warm, "warm", 20, "warm containers that are ready for a burst")
				f.StringSliceVar(&o.Bursts, "bursts", nil, "only these kinds of bursts, a list: "+strings.Join(bench.Bursts(), ", "))
				f.IntVar(&o.BurstRounds, "rounds", 3, "bursts of each kind, and turns beside a pool that refills")
				f.IntVar(&o.Refill, "refill", 0, "sessions that boot in a turn while a pool is full, and while it refills; 0: none")
				f.IntVar(&o.Memory, "memory", 24, "warm containers to measure the memory of; 0: none")
				dockerd(f, &o.Dockerd)
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Agent = p.product("agent")
					o.Progress = progress
					return bench.Boot(ctx, o)
				})
			},
		},
		{
			Name: "sandbox", Short: "Make sandboxes of E2B's SDKs and run a command in each, beside the plain API", Example: "holdfast bench sandbox -n 50",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.SandboxOptions
				f.IntVarP(&o.N, "number", "n", 50, "sandboxes of each kind")
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Agent = p.product("agent")
					o.Progress = progress
					return bench.Sandbox(ctx, o)
				})
			},
		},
		{
			Name: "cure-memcg", Short: "Free dying memory cgroups beside live page cache, with the gentle cure and by emptying all", Example: "holdfast bench cure-memcg",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.CureOptions{Reader: self(roleCureReader)}
				f.IntVarP(&o.Groups, "number", "n", 20_000, "dying groups")
				f.IntVar(&o.Cache, "cache", 256, "MiB of live page cache")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Worker, o.Guardian = p.product(drill.Role), p.product("guardian")
					o.Progress = progress
					return bench.CureMemcg(ctx, o)
				})
			},
		},
		{
			Name: "slow-start", Short: "Start MariaDB with a large buffer pool beside dying memory cgroups, and after their cure", Example: "holdfast bench slow-start",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.SlowStartOptions{Reader: self(roleCureReader), Join: self(roleJoinGroup)}
				f.IntVarP(&o.Groups, "number", "n", 50_000, "dying groups")
				f.IntVar(&o.Pool, "pool", 4096, "MiB of MariaDB's buffer pool; the host needs twice as much memory")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Worker, o.Guardian, o.Doctor = p.product(drill.Role), p.product("guardian"), p.product("doctor")
					o.Progress = progress
					return bench.SlowStart(ctx, o)
				})
			},
		},
		{
			Name: "cure-fadvise", Short: "Measure stat(2) under a storm of posix_fadvise, without and with the cure's seccomp profile", Example: "holdfast bench cure-fadvise",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.FadviseOptions{Victim: roleCureVictim}
				f.IntVar(&o.Rounds, "rounds", 5, "measurements of each way")
				f.DurationVar(&o.Duration, "duration", 5*time.Second, "duration of one measurement")
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					var err error
					if o.Program, err = os.Executable(); err != nil { // /proc/self is another process in a container
						return nil, err
					}
					o.Progress = progress
					return bench.CureFadvise(ctx, o)
				})
			},
		},
		{
			Name: "gc", Short: "Measure creates while images are removed, beside prune and a collector without pauses", Example: "holdfast bench gc --plot gc.html",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.GCOptions
				f.BoolVar(&o.Pressure, "pressure", false, "instead: whether the disk stays under its critical mark while spin-ups fill it without a pause")
				dockerd(f, &o.Dockerd)
				f.IntVar(&o.Images, "images", 6, "images that are removed in each way")
				f.IntVar(&o.Files, "files", 0, "files of each image (default 8000, with --locked 20000, with --pressure 250)")
				f.Float64Var(&o.Rate, "rate", 0, "creates per second (default 4, with --pressure 2)")
				f.DurationVar(&o.Duration, "duration", 0, "minimum duration of the creates in each way (default 1m, with --pressure 10m)")
				f.StringVar(&o.Plot, "plot", "", "write the latencies to this HTML file")
				f.IntVar(&o.Rounds, "rounds", 3, "measurements of creates on an idle engine and beside Holdfast's collector, in turns")
				f.BoolVar(&o.Locked, "locked", false, "instead: how long the engine takes for the removal of one image, linked away before or not")
				f.IntVar(&o.Pairs, "pairs", 3, "with --locked: pairs of images")
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Progress = progress
					return bench.GC(ctx, o)
				})
			},
		},
		{
			Name: "pull", Short: "Pull an image from a registry on loopback, with docker pull and with Holdfast", Example: "holdfast bench pull -n 15",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.PullOptions
				f.IntVarP(&o.N, "number", "n", 15, "pulls of each kind")
				f.IntVar(&o.Size, "size", 64, "size of the image in MiB")
				dockerd(f, &o.Dockerd)
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Holdfast = p.product("pull")
					o.Progress = progress
					return bench.Pull(ctx, o)
				})
			},
		},
		{
			Name: "run", Short: "Bring up a job of four images that are not there, with docker-compose and with Holdfast", Example: "holdfast bench run -n 10 --rate 60",
			Setup: func(f *pflag.FlagSet) experiment {
				var o bench.RunOptions
				f.IntVarP(&o.N, "number", "n", 10, "jobs of each kind")
				f.IntVar(&o.Size, "size", 32, "MiB of each image")
				f.Float64Var(&o.Rate, "rate", 0, "limit of the registry in MiB/s, 0 for none")
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Holdfast = p.product("run")
					o.Progress = progress
					return bench.Run(ctx, o)
				})
			},
		},
		{
			Name: "jobs", Short: "Run a job of many parallel runs on one host and on a fleet, beside docker run", Example: "holdfast bench jobs -n 24",
			Setup: func(f *pflag.FlagSet) experiment {
				o := jobs.Options{Member: self(rig.RoleMember)}
				f.IntVarP(&o.N, "number", "n", 24, "runs of the job")
				f.IntVar(&o.Nodes, "nodes", 3, "nodes of the fleet")
				f.IntVar(&o.Rounds, "rounds", 5, "jobs of each way")
				dockerd(f, &o.Dockerd)
				return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Program, o.Progress = p.holdfast, progress
					return jobs.Run(ctx, o)
				})
			},
		},
		{
			Name: "gateway", Short: "Send WebSocket messages and HTTP requests through the gateway, beside nginx and no proxy", Example: "holdfast bench gateway --only ws-64,http",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.GatewayOptions{Child: self(roleGatewayChild)}
				f.IntVar(&o.Conns, "connections", 100, "connections at once")
				f.IntVar(&o.Rounds, "rounds", 5, "measurements of each way and work")
				f.StringSliceVar(&o.Only, "only", nil, "only these works, of "+strings.Join(bench.GatewayWorks(), ", "))
				f.DurationVar(&o.Duration, "duration", 2*time.Second, "duration of one measurement")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, _ io.Writer) (cli.Result, error) {
					return bench.Gateway(ctx, o)
				})
			},
		},
		{
			Name: "clients", Short: "Hold thousands of idle, slow and hostile clients, and measure another client's requests", Example: "holdfast bench clients",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.ClientsOptions{Child: self(roleGatewayChild)}
				f.IntVarP(&o.Clients, "number", "n", 10000, "idle and slow clients at once, 10 to 20000")
				f.IntVar(&o.Rounds, "rounds", 3, "measurements without them, and with them")
				f.DurationVar(&o.Window, "duration", 2*time.Second, "duration of one measurement")
				f.StringArrayVar(&o.Only, "only", nil, "only the clients of this name; may be repeated")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Progress = progress
					return bench.Clients(ctx, o)
				})
			},
		},
		{
			Name: "fleet", Short: "Drain, kill and cut off nodes of a fleet while clients connect, beside the engine's own create and start",
			Example: "holdfast bench fleet -n 3 --sessions 60 --rate 50 --chaos mixed",
			Setup:   p.fleetBench,
		},
		{
			Name: "move", Short: "Move sessions with memory and sockets to another node, beside a cold boot of the same template",
			Example: "holdfast bench move -n 20 --write docs/moving.md",
			Setup:   p.moveBench,
		},
		{
			Name: "replace", Short: "Replace replicas of a real MariaDB, a new one first, beside stop then start, while clients read",
			Example: "holdfast bench replace -n 20 --size 2048",
			Setup:   p.replaceBench,
		},
		{
			Name: "sleep", Short: "Wake a session that sleeps with WebSockets open, and count their messages", Example: "holdfast bench sleep -n 100",
			Setup: p.sleepBench,
		},
		{
			Name: "doctor", Short: "Record stacks of all CPUs with perf and with Holdfast, and measure the slowdown of a load", Example: "holdfast bench doctor --rounds 3",
			Setup: func(f *pflag.FlagSet) experiment {
				o := bench.DoctorOptions{Load: self(roleDoctorLoad), Fold: self(roleDoctorFold)}
				f.DurationVar(&o.For, "for", 30*time.Second, "duration of one recording")
				f.IntVar(&o.Hz, "hz", 99, "samples of each busy CPU per second")
				f.IntVar(&o.Rounds, "rounds", 3, "recordings of each kind")
				f.IntVar(&o.Pairs, "pairs", 6, "windows with a recording, between windows without")
				f.DurationVar(&o.Window, "window", 5*time.Second, "duration of one window")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Record = p.product("doctor", "record")
					o.Progress = progress
					return bench.Doctor(ctx, o)
				})
			},
		},
		{
			Name: "reload", Short: "Reload and restart HAProxy under load, unprotected, with the usual workarounds and with protect",
			Example: "holdfast bench reload",
			Setup:   p.reloadBench,
		},
		{
			Name: "restarts", Short: "Restart real servers under their own load tools, with protect and without",
			Example: "holdfast bench restarts --only nginx,Redis",
			Setup:   p.restartsBench,
		},
		{
			Name: "accuracy", Short: "Run the doctor on every drill and on healthy hosts, and count right and wrong findings",
			Example: "holdfast bench accuracy --runs 20 --write docs/doctor.md",
			Setup:   p.accuracyBench,
		},
		{
			Name: "dashboard", Short: "Measure the dashboard of a large simulated fleet: page size, server time, CPU time of open pages", Example: "holdfast bench dashboard",
			Setup: func(f *pflag.FlagSet) experiment {
				var o pages.Options
				f.IntVar(&o.Nodes, "nodes", 1000, "nodes")
				f.IntVar(&o.Sessions, "sessions", 10000, "sessions")
				f.IntVarP(&o.Loads, "loads", "n", 200, "loads of each page")
				f.IntVar(&o.Open, "open", 4, "pages that are kept up to date, up to 256")
				f.DurationVar(&o.For, "for", 30*time.Second, "duration of the open pages")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Progress = progress
					return pages.Run(ctx, o)
				})
			},
		},
		{
			Name: "kubernetes", Short: "Measure the load of thousands of simulated agents on a real Kubernetes API server",
			Example: `holdfast bench kubernetes --apiserver "$(packaging/dev/kube.sh)"`,
			Setup:   p.kubernetesBench,
		},
		{
			Name: "scale", Short: "Measure a simulated fleet on a real etcd while some nodes vanish", Example: "holdfast bench scale --nodes 200 --sessions 20000",
			Setup: func(f *pflag.FlagSet) experiment {
				o := scale.Options{Member: self(rig.RoleMember), Directory: self(roleDirectory)}
				f.IntVar(&o.Nodes, "nodes", 100, "nodes")
				f.IntVar(&o.Sessions, "sessions", 10000, "sessions, spread over the nodes")
				f.Float64Var(&o.Lost, "lost", 0.05, "share of the nodes that vanish at once")
				f.IntVar(&o.Directories, "directories", 4, "nodes that keep a directory; the others ask these")
				f.IntVar(&o.Watchers, "watchers", 0, "watches that only count, beside those of the directories")
				f.DurationVar(&o.Boot, "boot", 250*time.Millisecond, "boot time of a container")
				f.DurationVar(&o.Steady, "steady", 20*time.Second, "how long the fleet is measured before the loss")
				return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
					o.Progress = progress
					return scale.Run(ctx, o)
				})
			},
		},
	}
}

// dockerd adds the flag of the benches that can run on another engine.
func dockerd(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "dockerd", "", "directory with the programs of another Docker engine (default: the installed one)")
}

// kubernetesBench is `holdfast bench kubernetes`.
func (p *programs) kubernetesBench(f *pflag.FlagSet) experiment {
	o := kubernetes.Options{Member: self(rig.RoleMember)}
	f.IntVar(&o.Nodes, "nodes", 5000, "simulated nodes")
	f.DurationVar(&o.For, "for", 5*time.Minute, "how long the cluster is measured at rest, up to 30m")
	f.DurationVar(&o.Idle, "idle", 0, "how long an agent keeps a connection without a request; 0 is as agents do")
	f.StringVar(&o.APIServer, "apiserver", "", "path of a kube-apiserver")
	f.StringVar(&o.Manifests, "manifests", "deploy/kubernetes", "directory with the agents' accounts and permissions")
	return p.checked(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Agent = p.product("agent")
		o.Progress = progress
		return kubernetes.Run(ctx, o)
	})
}

func (p *programs) reloadBench(f *pflag.FlagSet) experiment {
	var o reload.Options
	f.IntVarP(&o.Requests, "requests", "n", 20000, "requests of each run")
	f.Float64Var(&o.Rate, "rate", 1000, "clients that are due per second")
	modes := f.StringSlice("mode", nil, "only these modes, a list: nothing, syn-drop, handover, master-worker, migrate, plug, nfqueue, park")
	f.StringVar(&o.HAProxy, "haproxy", "", "absolute path of another HAProxy (default Debian's)")
	f.DurationVar(&o.Drain, "drain", 0, "protect's --drain; 0 leaves it to protect")
	f.BoolVar(&o.Full, "full", false, "a million requests and over 1,500 reloads with nfqueue and park, 100,000 requests with the others")
	f.BoolVar(&o.Idle, "idle", false, "instead: requests per second with a port installed beside without, while nothing reloads")
	f.IntVar(&o.Pairs, "pairs", 30, "with --idle: how often both are measured, two seconds each time")
	f.BoolVar(&o.WithKills, "kills", false, "instead: clients' waits when a process of a protected restart is killed")
	f.BoolVar(&o.WithKeep, "keep", false, "instead: latency and CPU time of requests on connections that were kept over a restart")
	f.StringVar(&o.Page, "html", "reload.html", "where the page with the plots is written; '' writes none")
	check := func() error {
		for _, m := range *modes {
			o.Modes = append(o.Modes, reload.Mode(m))
		}
		return o.Check()
	}
	return p.inLab(check, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Protect = p.product("protect")
		o.Progress = progress
		return reload.Measure(ctx, o)
	})
}

func (p *programs) fleetBench(f *pflag.FlagSet) experiment {
	var o fleet.Options
	f.IntVarP(&o.Agents, "number", "n", 3, "agents")
	f.IntVar(&o.Sessions, "sessions", 60, "sessions, each with a client that holds a connection")
	f.Float64Var(&o.Rate, "rate", 50, "clients that arrive per second")
	f.DurationVar(&o.For, "for", 3*time.Minute, "minimum duration; each act happens at least once")
	f.DurationVar(&o.Every, "every", 30*time.Second, "from one act to the next; 60 sessions and an act every 30s are what two CPUs can do")
	overload := f.Bool("overload", false, "instead: an act every 10s, by which more sessions are to move than two CPUs can start")
	f.StringVar(&o.Chaos, "chaos", string(fleet.Notice), "acts: none, mixed, or a list of "+fleet.ActNames(true))
	f.DurationVar(&o.TTL, "ttl", 3*time.Second, "life of the nodes' leases")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices")
	f.StringVar(&o.Dir, "dir", "", "leave what containers, nodes and etcd wrote in this empty directory")
	f.BoolVar(&o.Gather, "gather", false, "all sessions begin on one node")
	f.StringVar(&o.Pools, "pools", fleet.Pooled, "what nodes keep ready, one word per node, repeated: bridge (Docker's networks), pooled (Holdfast's), warm (containers)")
	f.StringVar(&o.Runsc, "runsc", "", "sessions run under gVisor, with this runsc, and take their memory along")
	f.DurationVar(&o.Sleep, "sleep", 0, "sessions sleep after this time without data, between the messages that clients send every 2s; 0: never")
	f.BoolVar(&o.BreakFence, "break-fence", false, "nodes outlive their leases on purpose: the checks must detect it")
	check := func() error {
		if *overload {
			if f.Changed("every") {
				return errors.New("--overload is --every 10s, name one of the two")
			}
			o.Every = 10 * time.Second
		}
		return o.Check()
	}
	return p.inLab(check, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Progress = progress
		o.Program = p.holdfast
		r, err := fleet.Run(ctx, o)
		return r.Result, err
	})
}
