package cli_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/linux/perf"
)

// The test binary is also the command holdfast, which scripts and the terminal tests
// run as a process.
func TestMain(m *testing.M) {
	interruptible := func(run func(context.Context) int) func() {
		return func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			context.AfterFunc(ctx, stop)
			os.Exit(run(ctx))
		}
	}
	testscript.Main(leakChecked{m}, map[string]func(){
		"holdfast": interruptible(func(ctx context.Context) int {
			return cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, testDeps())
		}),
		"holdfast-bench": interruptible(func(ctx context.Context) int {
			return cli.ToolMain(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, testTool())
		}),
	})
}

// testTool has one experiment.
func testTool() cli.Tool {
	return cli.Tool{
		Name: "holdfast-bench", Short: "Measure", Long: "Measure.", Version: testDeps().Version,
		Experiments: []cli.Experiment{{Name: "noop", Short: "Time nothing beside nothing", Example: "holdfast bench noop -n 3", Setup: benchNoop}},
	}
}

type leakChecked struct{ m *testing.M }

// raceEnv prevents a command with the race detector from sleeping a second before it
// exits, which is the detector's default (golang.org/doc/articles/race_detector).
const raceEnv = "atexit_sleep_ms=10"

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// dataEnv names the data directory of an agent that does not run.
const dataEnv = "HOLDFAST_TEST_DATA"

// tokensEnv names the file with the tokens of an agent's configuration.
const tokensEnv = "HOLDFAST_TEST_TOKENS"

// forever keeps records with the fixed times of a test.
var forever = spinup.Keep{Count: 1000, Age: 100 * 365 * 24 * time.Hour}

// testDeps returns simple versions of the functions behind commands.
func testDeps() cli.Deps {
	return cli.Deps{
		Version:    api.Version{Version: "v1.2.3", Commit: "0123456789abcdef", Go: "go1.26.0", OS: "linux", Arch: "amd64"},
		Now:        func() time.Time { return apitest.Began.Add(90 * time.Minute) },
		AgentFlags: func(f *pflag.FlagSet) { f.String("config", "/etc/holdfast/holdfast.yaml", "configuration file") },
		ConfigFlags: func(f *pflag.FlagSet) func() config.Overrides {
			gateway, level := f.String("gateway", "", "host:port that clients connect to"), f.String("log-level", "", "level of the log")
			return func() config.Overrides { return config.Overrides{GatewayListen: *gateway, LogLevel: *level} }
		},
		CheckFiles: func(c config.Config) error {
			if c.Gateway.CertFile != "" {
				return errors.New("files: not here")
			}
			return nil
		},
		RunAgent: func(_ context.Context, r cli.AgentRun) error {
			conf, err := r.Flags.GetString("config")
			if conf == "none" {
				err = holdfast.WithHint(fmt.Errorf("connecting to the engine: %w", holdfast.ErrEngine), "start dockerd")
			}
			fmt.Fprintf(r.Stdout, "agent: config %s, socket %s\n", conf, r.Socket)
			return err
		},
		Host: func(context.Context) (cli.Host, error) {
			h := cli.Host{DataDir: os.Getenv(dataEnv), Spinup: spinup.Config{Slow: spinup.DefaultRules(), Keep: forever}, Cures: []schedule.Entry{{Cure: "memcg"}, {Cure: "pinned"}}, Tokens: api.TokenFiles{Admin: os.Getenv(tokensEnv)}}
			if h.DataDir != "" {
				h.RunDir = h.DataDir + "-run"
			}
			return h, nil
		},
		NewNodeID: func(_ context.Context, config string) (before, now holdfast.NodeID, err error) {
			if config == "same" {
				err = holdfast.WithHint(errors.New("this host would still be node n1"), "set another id")
			}
			return "n1", "n2", err
		},
		DrainEngine: func(_ context.Context, q api.DrainRequest, step func(holdfast.Step)) (holdfast.DrainReport, error) {
			s := holdfast.Step{Name: "kill", Count: 3}
			step(s)
			return holdfast.DrainReport{Node: "engine", Dead: 3, Steps: []holdfast.Step{s}, Left: []holdfast.Leftover{}}, nil
		},
		Examine: examined,
		Drill: func(_ context.Context, d drill.Drill, o drill.Options) error {
			fmt.Fprintf(o.Progress, "drill %s, size %d, image %q\n", d.Name, o.Size, o.Image)
			o.Ready(drill.Running{Drill: d.Name, Rule: d.Rule, Group: "/g"})
			return nil
		},
		Record:       recording,
		StartCommand: startCommand,
		Cures: cli.CureDeps{Plan: func(_ context.Context, e schedule.Entry) ([]cure.Report, error) {
			if e.Cure == "pinned" {
				return nil, cure.ErrNothing
			}
			return []cure.Report{{Cure: e.Cure, Target: "/docker", Plan: cure.Plan{Does: []string{"reclaim a little"}}}}, nil
		}},
		OpenLocal: func(context.Context) (cli.Local, error) { return cli.Local{}, errors.New("the engine is not here") },
		Hidden: map[string]func(context.Context, []string) error{"guardian": func(_ context.Context, args []string) error {
			fmt.Printf("guardian: %q\n", args)
			return nil
		}},
		Bench: func(args []string) error {
			fmt.Printf("holdfast-bench: %q\n", args)
			return nil
		},
	}
}

// examined returns a healthy host after 30 s, and a sick one after any other time.
func examined(_ context.Context, r cli.DoctorRun) (doctor.Report, error) {
	r.Step("observing")
	rep := doctor.Report{Seconds: r.For.Seconds(), Kernel: "6.1.0", Findings: []doctor.Finding{}, Checked: []doctor.Check{
		{Rule: "mount-leak", Verdict: doctor.Fine}, {Rule: "slow-machine", Verdict: doctor.Fine}, {Rule: "kernel-lock", Verdict: doctor.NotJudged, Why: "lock.seen: BPF is not allowed"},
	}, Gaps: []fact.Gap{{Probe: "locks", Sees: "waits for locks", Why: "BPF is not allowed", Hint: "run it as root"}}, Facts: []fact.Fact{
		{Name: fact.HostUptime, Value: 90000}, {Name: fact.HostCPUs, Value: 2}, {Name: fact.CPUBusy, Value: 0.5},
		{Name: fact.CheckCPU, Value: 1000}, {Name: fact.CheckMem, Value: 9000}, {Name: fact.CheckDisk, Value: 0.6}, {Name: fact.CheckRead, Value: 0.094}, {Name: fact.Past + fact.CheckCPU, Value: 1010}, {Name: fact.AllocMs, Value: 75}, {Name: fact.CPUSteal, Value: 0.021},
		{Name: fact.SlabCache, Value: 64 << 20, Subject: fact.Subject{Device: "dentry"}},
	}}
	if r.For == 30*time.Second {
		return rep, nil
	}
	f := doctor.Finding{Finding: rule.Finding{Rule: "fadvise-storm", Severity: rule.Warning, Title: "a storm\x1b[31m",
		Evidence: []rule.Evidence{{What: "drains", Found: "7,000/s", Healthy: "under 10/s"}},
		Cures:    []rule.Cure{{What: "Switch it off.", Command: "docker stop web-1"}}},
		Subject: &doctor.Subject{Container: "web-1", Image: "shop:7", ContainerID: "0123456789abcdef", Pid: 42, Command: "logger --all", Kernel: []string{"generic_fadvise", "ksys_fadvise64_64", "do_syscall_64"}},
		Against: []doctor.Subject{{Cgroup: "/docker/other", ContainerID: "fedcba9876543210"}}}
	if r.For == time.Second {
		f.Severity = rule.Notice
	}
	rep.Findings = append(rep.Findings, f)
	return rep, nil
}

// recording returns one of a healthy host for 30 s, and one of a sick host for any
// other time.
func recording(_ context.Context, r profile.Recorder) (*profile.Profile, error) {
	r.Step("recording")
	if r.Start != nil && r.Start.Command != nil {
		ended, err := r.Start.Command()
		if err != nil {
			return nil, err
		}
		if r.Container == "" {
			<-ended
		}
	}
	if r.Container == "forbidden" {
		return nil, holdfast.WithHint(perf.ErrForbidden, "run it as root")
	}
	if r.Container == "missing" {
		return nil, fmt.Errorf("container %q: %w", r.Container, holdfast.ErrNotFound)
	}
	web := profile.Task{Container: "web-1", ContainerID: "0123456789abcdef", Image: "shop:7", Comm: "web"}
	p := &profile.Profile{
		Meta: profile.Meta{Format: 1, Host: "h1", Kernel: "6.1.0", CPUs: 2, Hz: r.Hz, Seconds: r.For.Seconds(), Began: apitest.Began},
		Frames: []profile.Frame{{Name: "generic_fadvise", Kernel: true}, {Name: "ksys_fadvise64_64", Kernel: true}, {Name: "do_syscall_64", Kernel: true},
			{Name: "log\x1b[31m", File: "/app"}},
		Samples: []profile.Sample{{Task: web, Stack: []int{3}, Count: 990}},
	}
	if r.For != 30*time.Second {
		p.Meta.Gaps, p.Meta.Lost = []string{"the kernel\x07 hides"}, 3
		p.Samples = append(p.Samples, profile.Sample{Task: web, Stack: []int{0, 1, 2, 3}, Count: 495})
	}
	return p, nil
}

func benchNoop(f *pflag.FlagSet) func(context.Context, io.Writer) (cli.Result, error) {
	n := f.IntP("count", "n", 2, "samples")
	return func(_ context.Context, progress io.Writer) (cli.Result, error) {
		fmt.Fprintln(progress, "measuring nothing")
		if *n < 0 {
			return nil, errors.New("less than nothing")
		}
		if *n >= 1000 {
			return nil, cli.Usage(errors.New("more than there is"))
		}
		r := bench.Result{Name: "noop", Score: 1, Rows: []bench.Row{bench.NewRow("nothing", "ms", make([]float64, *n))}}
		if *n > 100 {
			r.Failed = *n - 100
		}
		return r, nil
	}
}

// startAgent serves b on a unix socket until the test ends.
func startAgent(b interface{ Parts() api.Parts }, socket string, cleanup func(func())) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, l, api.New(b.Parts(), api.Options{Admin: true, Log: log}), log) }()
	cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	return nil
}

type backendKey struct{}

// User stories, each with an agent of its own on $WORK/agent.sock.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			socket := filepath.Join(e.WorkDir, "agent.sock")
			e.Setenv("HOLDFAST_SOCKET", socket)
			e.Setenv(dataEnv, filepath.Join(e.WorkDir, "data"))
			e.Setenv("GORACE", raceEnv)
			b := &apitest.Backend{Files: filepath.Join(e.WorkDir, "container")}
			e.Setenv("FILES", b.Files)
			if err := os.Mkdir(b.Files, 0o755); err != nil {
				return err
			}
			if err := standIn(b, e.Defer); err != nil {
				return err
			}
			e.Values[backendKey{}] = b
			if err := startRemote(b, e); err != nil {
				return err
			}
			return startAgent(b, socket, e.Defer)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "fault": fault, "history": history, "spinups": spinups, "records": records, "collection": collection, "sick": sick},
	})
}

// startRemote also serves b over TLS at $REMOTE, with the token 0123456789abcdef, or
// fedcba9876543210 for reading, and $WORK/ca.pem as its certificate.
func startRemote(b interface{ Parts() api.Parts }, e *testscript.Env) error {
	files := api.TokenFiles{Admin: filepath.Join(e.WorkDir, "api.tokens"), Read: filepath.Join(e.WorkDir, "api.read-tokens")}
	for file, text := range map[string]string{files.Admin: "ops 0123456789abcdef\n", files.Read: "grafana fedcba9876543210\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	tokens, err := api.OpenTokens(files, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s := httptest.NewTLSServer(api.New(b.Parts(), api.Options{Tokens: tokens}))
	e.Defer(s.Close)
	e.Setenv("REMOTE", s.URL)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return os.WriteFile(filepath.Join(e.WorkDir, "ca.pem"), ca, 0o644)
}

// standIn gives b the pid of a process that ends when the test stops the agent.
func standIn(b *apitest.Backend, cleanup func(func())) error {
	p := exec.Command("sleep", "3600")
	if err := p.Start(); err != nil {
		return err
	}
	b.PID = p.Process.Pid
	b.Stopped = func(bool) { _ = p.Process.Kill() }
	waited := make(chan struct{})
	go func() {
		_ = p.Wait() // its error says that it was killed
		close(waited)
	}()
	cleanup(func() {
		_ = p.Process.Kill()
		<-waited
	})
	return nil
}

// code runs a command and checks its exit code: code N command [arg...].
func code(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if err != nil || neg || len(args) < 2 {
		ts.Fatalf("usage: code N command [arg...]")
	}
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// history gives the agent past replacements: the figures of a slow host and of a
// healthy one in docs/operations.md.
func history(ts *testscript.TestScript, _ bool, _ []string) {
	s := func(seconds float64) holdfast.Millis { return holdfast.Millis(seconds * float64(time.Second)) }
	row := func(key holdfast.SessionKey, from, to holdfast.NodeID, init, start, ready, total float64) holdfast.Replacement {
		return holdfast.Replacement{Key: key, Template: "mysql", From: from, To: to, Epoch: 7, Started: apitest.Began, Total: s(total),
			Boot: holdfast.Phases{Init: s(init), Start: s(start), Ready: s(ready)}}
	}
	failed := row("broken", "n1", "", 0, 0, 0, 5)
	failed.Error = "timed out"
	b, _ := ts.Value(backendKey{}).(*apitest.Backend)
	b.SetHistory([]holdfast.Replacement{failed, row("n4sx0", "n1", "n2", 2120, 1104, 0.01, 3300), row("mq2", "n3", "n1", 75, 17, 1, 100),
		row("jxijq", "n2", "n1", 74, 17, 0.01, 95), row("old", "n2", "n3", 74, 17, 0.03, 95)})
}

// spinups gives the agent records of spin-ups.
func spinups(ts *testscript.TestScript, _ bool, _ []string) {
	b, _ := ts.Value(backendKey{}).(*apitest.Backend)
	b.SetSpinups(apitest.Samples())
}

// collection gives the agent a garbage collection.
func collection(ts *testscript.TestScript, _ bool, _ []string) {
	b, _ := ts.Value(backendKey{}).(*apitest.Backend)
	b.SetCollection(apitest.SomeCollection())
}

// sick makes the agent's host a sick one, in a fleet.
func sick(ts *testscript.TestScript, _ bool, _ []string) {
	b, _ := ts.Value(backendKey{}).(*apitest.Backend)
	b.SetDoctor()
}

// records writes the same records to a data directory: records DIR.
func records(ts *testscript.TestScript, _ bool, args []string) {
	s, err := spinup.OpenStore(filepath.Join(args[0], spinup.FileName), forever, slog.New(slog.DiscardHandler))
	ts.Check(err)
	for _, r := range apitest.Samples() {
		ts.Check(s.Append(r))
	}
	ts.Check(s.Close())
}

// fault makes the agent fail: fault engine|store|busy|none.
func fault(ts *testscript.TestScript, _ bool, args []string) {
	faults := map[string]error{"engine": holdfast.ErrEngine, "store": holdfast.ErrStore, "busy": holdfast.ErrBusy, "none": nil}
	f, ok := faults[args[0]]
	if !ok {
		ts.Fatalf("unknown fault %q", args[0])
	}
	b, _ := ts.Value(backendKey{}).(*apitest.Backend)
	b.SetFault(f)
}

// startCommand starts a command of a recording.
func startCommand(_ context.Context, words []string, quiet bool) (cli.Command, error) {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if quiet {
		cmd.Stdout = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return cli.Command{}, err
	}
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	return cli.Command{Ended: ended, Wait: func(stop bool) error {
		if stop {
			_ = cmd.Process.Kill()
		}
		<-ended
		if err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
		return nil
	}}, nil
}
