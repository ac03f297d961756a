// Package kubenode assembles the agent of a Kubernetes node. It has no sessions and no
// store: it reports the host's health to the API server, records how pods come up, and
// evacuates the node on a preemption notice.
package kubenode

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/internal/agent/cureguard"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/hosts/kube/podwatch"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/recorder"
	"holdfast/internal/platform/linux/cgroup"
	procfs "holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
)

// Options configure the agent of a Kubernetes node beside its configuration file.
type Options struct {
	Kubeconfig string // "": the service account of the pod
	Namespace  string // of the leases; "": the namespace of the pod
	Socket     string // of the container runtime; "": the first of cri.Sockets that exists
	// PodDetails asks the API server for the pull times and the readiness of each pod
	// that comes up.
	PodDetails bool
	// Taint is the effect of the taint for each condition that is true; "": no taint.
	Taint string

	Version string
	Log     *slog.Logger
	Alloc   []string // the command line that runs probe.Alloc, without its last argument
	// Guardian is the command line that runs guardian.Main in a new process.
	Guardian []string
}

// agent is the agent of one node.
type agent struct {
	cfg      config.Config
	opt      Options
	metrics  *prometheus.Registry
	runtime  *cri.Runtime
	watch    *watch.Watch
	cures    *schedule.Schedule
	guard    *cureguard.Guard
	reporter *node.Reporter
	spinups  *recorder.Recorder
	kernel   string
}

// Serve runs the agent until ctx is done.
func Serve(ctx context.Context, cfg config.Config, opt Options) (err error) {
	if !cfg.NodeGiven {
		return holdfast.WithHint(errors.New("the node's name in the cluster is not given"), "set it with --node; a manifest takes it from spec.nodeName")
	}
	x := &agent{cfg: cfg, opt: opt, metrics: process.NewRegistry(), kernel: process.KernelRelease(cfg.Doctor.Proc)}
	lock, _, err := process.Prepare(cfg, opt.Log)
	if err != nil {
		return err
	}
	defer lock.Close()
	l, err := process.ListenAPI(cfg.API, opt.Log)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close() // the server has closed it already, if it ran
	}
	client, err := x.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	if x.runtime, err = openRuntime(opt.Socket); err != nil {
		return err
	}
	defer x.runtime.Close()
	if err := x.newWatch(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.guard.Close()) }()
	x.spinups = recorder.New(recorder.Options{
		File: filepath.Join(cfg.DataDir, spinup.FileName), Config: cfg.Spinup, Shared: true, Metrics: x.metrics, Log: opt.Log,
	})
	pods, evacuator := x.newPodWatch(client), x.newEvacuator(client)
	p := tasks.NewStack()
	defer func() { err = errors.Join(err, p.Stop()) }()
	p.Start("kubernetes", x.reporter.Run)
	p.Start("records of spin-ups", x.spinups.Run)
	p.Start("spin-ups of pods", pods.Run)
	p.Start("doctor", x.watch.Run)
	p.Start("scheduled cures", x.cures.Run)
	p.Start("cures", func(ctx context.Context) error { return cure.Follow(ctx, cfg.DataDir, opt.Log) })
	x.evacuate(p, evacuator)
	if l != nil {
		if err := x.serve(p, l); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.Failed():
		return err
	}
}

// connect creates the client of the API server and the reporter.
func (x *agent) connect() (*kube.Client, error) {
	conf, err := kube.InCluster()
	if x.opt.Kubeconfig != "" {
		conf, err = kube.Load(x.opt.Kubeconfig, "")
	}
	if err != nil {
		return nil, err
	}
	m := node.NewMetrics(x.metrics)
	client, err := kube.New(conf, kube.Options{Agent: "holdfast-agent/" + x.opt.Version, Observe: m.Observe})
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(x.opt.Namespace, conf.Namespace)
	x.reporter = node.New(client, node.Config{Node: x.cfg.Node, Namespace: namespace, Record: x.record, Taint: x.opt.Taint}, m, x.opt.Log)
	return client, nil
}

// openRuntime returns the container runtime at a socket. The runtime may start later
// than this process.
func openRuntime(socket string) (*cri.Runtime, error) {
	if socket != "" {
		return cri.Open(socket)
	}
	for _, s := range cri.Sockets() {
		if _, err := os.Stat(s); err == nil {
			return cri.Open(s)
		}
	}
	return cri.Open(cri.Sockets()[0])
}

// newWatch creates the doctor and its schedule of cures. It undoes the cure of an agent
// that was killed.
func (x *agent) newWatch() error {
	c := x.cfg.Doctor
	host := probe.Host{Proc: procfs.FS(c.Proc), Sys: c.Sys, Kmsg: "/dev/kmsg", Child: x.opt.Alloc, Scratch: x.cfg.DataDir}
	var err error
	if host.Groups, err = cgroup.Find(host.Proc); err != nil {
		x.opt.Log.Warn("the doctor finds no control groups", "err", err)
	}
	x.watch = watch.New(c.Watch, watch.Deps{
		Host: host, Engine: x.runtime, Store: watch.NewStore(x.cfg.DataDir, c.Watch.Keep, x.opt.Log), Metrics: watch.NewMetrics(x.metrics), Log: x.opt.Log,
		Changed: func(open []watch.Open) { x.reporter.Found(findings(open)) },
	})
	x.guard = cureguard.New(x.opt.Guardian, x.cfg.RunDir, x.opt.Log)
	x.cures = schedule.New(c.Cures, schedule.Deps{DataDir: x.cfg.DataDir, Doctor: x.watch, Host: host, Guard: x.guard.Cures(), Metrics: x.metrics, Log: x.opt.Log})
	return x.guard.Tidy()
}

// findings converts the doctor's open findings for the reporter.
func findings(open []watch.Open) []node.Finding {
	list := make([]node.Finding, 0, len(open))
	for _, o := range open {
		f := node.Finding{Rule: o.Rule, Severity: string(o.Severity), Title: o.Title}
		if o.Subject != nil {
			if f.Pod = reference(o.Subject.Pod); f.Pod != nil {
				f.Workload = o.Subject.Pod.Workload
			}
		}
		list = append(list, f)
	}
	return list
}

func reference(p *doctor.Pod) *kube.Reference {
	if p == nil || p.Name == "" {
		return nil
	}
	return &kube.Reference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// record returns the record of the host in its lease; nil before the doctor's first
// round.
func (x *agent) record() *ranking.Record {
	facts, at := x.watch.Summary()
	if at.IsZero() {
		return nil
	}
	return &ranking.Record{Node: holdfast.NodeID(x.cfg.Node), At: at.UTC(), Kernel: x.kernel, Role: x.cfg.Doctor.Role, Facts: facts, Spinups: x.spinups.Figures(at)}
}

// serve serves the metrics.
func (x *agent) serve(p *tasks.Stack, l net.Listener) error {
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: x.cfg.API.TokenFile, Read: x.cfg.API.ReadTokenFile}, x.opt.Log)
	if err != nil {
		return err
	}
	show := api.NewMetrics(api.Options{Tokens: tokens, Metrics: promhttp.HandlerFor(x.metrics, promhttp.HandlerOpts{}), Log: x.opt.Log})
	p.Start("api", func(ctx context.Context) error { return api.Serve(ctx, l, show, x.opt.Log) })
	return nil
}

// newPodWatch returns the watcher that records how pods come up.
func (x *agent) newPodWatch(client *kube.Client) *podwatch.Watcher {
	c := podwatch.Config{Node: x.cfg.Node, Kernel: x.kernel, Known: x.spinups.Containers(), Record: x.spinups.Record, Log: x.opt.Log}
	if x.opt.PodDetails {
		c.Cluster = client
	}
	return podwatch.New(x.runtime, c)
}
