package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/agent"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/agent/kubenode"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/sessions/gateway"
)

// agentFlags adds the flags of `holdfast agent`.
func agentFlags(f *pflag.FlagSet) {
	f.String("config", "", "configuration file (default "+config.DefaultPath+", which may be missing)")
	configFlags(f)
	f.Bool("kubernetes", false, "run as the agent of a Kubernetes node: without sessions and store, with reports to the cluster's API server")
	f.String("kubeconfig", "", "with --kubernetes: kubeconfig file (default the pod's own account)")
	f.String("namespace", "", "with --kubernetes: namespace of the agents' leases (default the pod's own)")
	f.Bool("pod-details", false, "with --kubernetes: ask the API server for the pull times and the readiness of each new pod (needs additional rights)")
	f.String("taint", "", "with --kubernetes: taint the node while a condition is true, with this effect: PreferNoSchedule or NoSchedule (default none; needs additional rights)")
	f.StringSlice("notices", nil, "with --kubernetes: evacuate the pods when one of these announces the end of the node: gce, aws, azure, logind (needs additional rights)")
	f.StringSlice("cures", nil, "with --kubernetes: carry out these cures while there is a finding for them, with the defaults of doctor.cures: "+strings.Join(schedule.Names(), ", ")+" (needs additional rights)")
	f.String("cri-socket", "", "with --kubernetes: unix socket of the container runtime (default the first usual one that exists)")
}

// configFlags adds the flags that override keys of the file, and returns a function that
// reads them.
func configFlags(f *pflag.FlagSet) func() config.Overrides {
	f.String("node", "", "id of this node (default the host's name)")
	f.String("data-dir", "", "directory of the lease and the embedded store (default /var/lib/holdfast)")
	f.String("run-dir", "", "directory of the files that end with a boot of the host (default /run/holdfast)")
	f.String("engine", "", "docker or containerd (default docker)")
	f.String("docker-host", "", "the engine's socket (default $DOCKER_HOST, then unix:///var/run/docker.sock; with containerd unix:///run/containerd/containerd.sock)")
	f.String("etcd-endpoints", "", "endpoints of the etcd that stores ownership, comma-separated (default an embedded store)")
	f.String("etcd-ca-file", "", "PEM file with the authority that signs the etcd's certificate")
	f.String("etcd-cert-file", "", "PEM file with the agent's certificate for the etcd")
	f.String("etcd-key-file", "", "PEM file with the key of that certificate")
	f.String("fleet", "", "host:port that the other nodes connect to (default none)")
	f.String("gateway", "", "host:port that clients connect to (default 127.0.0.1:7070)")
	f.String("api", "", `host:port of API and metrics, or "none" (default 127.0.0.1:7071)`)
	f.String("log-level", "", "debug, info, warn or error (default info)")
	return func() config.Overrides { return overrides(f) }
}

// getter returns a function that reads string flags of f.
func getter(f *pflag.FlagSet) func(name string) string {
	return func(name string) string {
		s, _ := f.GetString(name) // configFlags or agentFlags has added it
		return s
	}
}

func overrides(f *pflag.FlagSet) config.Overrides {
	get := getter(f)
	return config.Overrides{
		Node: get("node"), DataDir: get("data-dir"), RunDir: get("run-dir"), Engine: get("engine"), EngineHost: get("docker-host"),
		EtcdEndpoints: get("etcd-endpoints"), EtcdCA: get("etcd-ca-file"), EtcdCert: get("etcd-cert-file"), EtcdKey: get("etcd-key-file"),
		FleetListen: get("fleet"), GatewayListen: get("gateway"), APIListen: get("api"), LogLevel: get("log-level"),
	}
}

// runAgent is `holdfast agent`. SIGTERM and SIGINT end ctx, which drains the node.
// SIGUSR2 leaves the containers to the next agent.
func runAgent(ctx context.Context, r cli.AgentRun) error {
	if on, _ := r.Flags.GetBool("kubernetes"); on {
		return runKubernetesAgent(ctx, r)
	}
	for _, name := range []string{"kubeconfig", "namespace", "cri-socket", "pod-details", "taint", "notices", "cures"} {
		if r.Flags.Changed(name) {
			return cli.Usage(fmt.Errorf("--%s goes with --kubernetes", name))
		}
	}
	turn, err := handoff.Inherit()
	if err != nil {
		return err
	}
	defer turn.Close()
	over := overrides(r.Flags)
	over.Socket = r.Socket
	c, err := config.Load(ctx, configFile(getter(r.Flags)("config")), over)
	if err != nil {
		err = cli.ConfigError(err)
		turn.Fail(err)
		return err
	}
	gateway.SpareProcessor()
	return serveAgent(ctx, turn, c, r)
}

// runKubernetesAgent is `holdfast agent --kubernetes`. Signals end it without a drain: the
// node's pods belong to the kubelet.
func runKubernetesAgent(ctx context.Context, r cli.AgentRun) error {
	get := getter(r.Flags)
	over := overrides(r.Flags)
	over.Socket = r.Socket
	c, err := config.LoadCollector(ctx, configFile(get("config")), over)
	if err != nil {
		return cli.ConfigError(err)
	}
	k := kubenode.Options{
		Kubeconfig: get("kubeconfig"), Namespace: get("namespace"), Socket: get("cri-socket"),
		Version: buildVersion().Version, Log: slog.New(logHandler(c.Log, r.Stderr)), Alloc: self(probe.RoleAlloc), Guardian: self(roleGuardian), Taint: get("taint"),
	}
	if err := node.CheckEffect(k.Taint); err != nil {
		return cli.Usage(fmt.Errorf("--taint: %w", err))
	}
	notices, _ := r.Flags.GetStringSlice("notices") // agentFlags has added it
	if err := c.Preempt.Enable(notices...); err != nil {
		return cli.Usage(fmt.Errorf("--notices: %w", err))
	}
	if err := c.Preempt.Validate(); err != nil {
		return cli.ConfigError(fmt.Errorf("preempt.%w", err))
	}
	cures, _ := r.Flags.GetStringSlice("cures") // agentFlags has added it
	for _, name := range cures {
		c.Doctor.Cures = append(c.Doctor.Cures, schedule.Entry{Cure: name})
	}
	if err := schedule.Validate(c.Doctor.Cures); err != nil {
		return cli.Usage(fmt.Errorf("--cures: %w", err))
	}
	k.PodDetails, _ = r.Flags.GetBool("pod-details") // agentFlags has added it
	return kubenode.Serve(ctx, c, k)
}

// socketOf returns the socket of an agent with these flags.
func socketOf(ctx context.Context, r cli.AgentRun) (string, error) {
	c, err := config.LoadHost(ctx, configFile(getter(r.Flags)("config")))
	if err != nil {
		return "", cli.ConfigError(err)
	}
	return c.API.Socket, nil
}

// newNodeID is `holdfast node new-id`.
func newNodeID(ctx context.Context, file string) (before, now holdfast.NodeID, err error) {
	c, err := config.LoadHost(ctx, configFile(file))
	if err != nil {
		return "", "", cli.ConfigError(err)
	}
	return process.NewID(c)
}

func serveAgent(ctx context.Context, turn *handoff.Turn, c config.Config, r cli.AgentRun) error {
	// The agent must outlive a reader of its output: Go ends a program that writes to a
	// broken stdout (os/signal).
	signal.Ignore(syscall.SIGPIPE)
	keep := make(chan os.Signal, 1)
	signal.Notify(keep, syscall.SIGUSR2)
	defer signal.Stop(keep)
	err := agent.Serve(ctx, keep, turn, c, agent.Options{
		Version:  buildVersion().Version,
		Log:      slog.New(logHandler(c.Log, r.Stderr)),
		Guardian: self(roleGuardian),
		Deadman:  self(roleDeadman),
		Hook:     self(roleHook),
		Commands: self(roleCommands), JobWatcher: self(roleJobWatcher),
		Alloc:   self(probe.RoleAlloc),
		Next:    onDisk(os.Args),
		Stdout:  r.Stdout,
		Stderr:  r.Stderr,
		Up:      func(at agent.Addresses) { printUp(r.Stdout, at) },
		Step:    r.Step,
		Drained: r.Drained,
	})
	if errors.Is(err, agent.ErrLeft) {
		return cli.Partial(err, "the report above names it; the next agent on this data directory takes it up")
	}
	return err
}

// onDisk returns the command that started this process. After an upgrade of the files it
// starts the new program: the path is as the command named it, and may be a link that the
// upgrade changes.
func onDisk(argv []string) []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	program := self
	for _, dir := range append([]string{""}, filepath.SplitList(os.Getenv("PATH"))...) {
		if strings.Contains(argv[0], "/") != (dir == "") {
			continue // a name with a slash is a path; a name without one is searched in $PATH
		}
		path, err := filepath.Abs(filepath.Join(dir, argv[0]))
		if err == nil && !strings.HasPrefix(path, "/proc/") && sameFile(path, self) {
			program = path
			break
		}
	}
	return append([]string{program}, argv[1:]...)
}

func sameFile(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// drainEngine is `holdfast drain --engine-all` on a host without an agent. An invalid
// configuration file does not prevent the drain.
func drainEngine(ctx context.Context, q api.DrainRequest, step func(holdfast.Step)) (holdfast.DrainReport, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return agent.DrainEngine(ctx, hostConfig(ctx), self(roleGuardian), q, step, log)
}

func logHandler(c config.Log, w io.Writer) slog.Handler {
	var level slog.Level
	_ = level.UnmarshalText([]byte(strings.ToUpper(c.Level))) // the configuration was checked
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

func printUp(w io.Writer, at agent.Addresses) {
	fmt.Fprintf(w, "node %s is up\n\n  sessions  %s/s/<key>/\n", at.Node, at.Gateway)
	if at.API != "" {
		fmt.Fprintf(w, "  metrics   %s/metrics\n", at.API)
	}
	fmt.Fprintf(w, "  api       %s\n\nCtrl-C drains: every container is killed and seen dead.\n"+
		"To end the agent alone and leave them to the next one: holdfast agent stop --keep\n\n", at.Socket)
}
