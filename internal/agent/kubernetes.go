package agent

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/platform/linux/cgroup"
	procfs "holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
)

// Kubernetes is what the agent of a Kubernetes node is told beside its configuration.
type Kubernetes struct {
	Kubeconfig string // "": the pod's own account
	Namespace  string // of the leases; "": the one that our name is in
	Socket     string // of the container runtime; "": the first of cri.Sockets that is there
	// PodDetails: the API server is asked about each pod that comes up, how long its
	// pulls took and when it was ready.
	PodDetails bool
	// Taint is the effect of the taint of a node for each condition that is true; "": it
	// gets none.
	Taint string
}

// kubeNode is the agent of a Kubernetes node: it has no sessions and no store, and what
// it knows it tells the cluster's API server.
type kubeNode struct {
	cfg      config.Config
	opt      Options
	metrics  *prometheus.Registry
	runtime  *cri.Runtime
	watch    *watch.Watch
	reporter *node.Reporter
	spinups  *podSpinups
	kernel   string
}

// ServeKubernetes runs the agent of a Kubernetes node until ctx is done.
func ServeKubernetes(ctx context.Context, cfg config.Config, k Kubernetes, opt Options) (err error) {
	if !cfg.NodeGiven {
		return holdfast.WithHint(errors.New("the node's name in the cluster is not given"), "--node names it; a manifest has it from spec.nodeName")
	}
	x := &kubeNode{cfg: cfg, opt: opt, metrics: newRegistry(), kernel: kernelRelease(cfg.Doctor.Proc)}
	a := &Agent{cfg: cfg, opt: opt, log: opt.Log, node: holdfast.NodeID(cfg.Node)}
	lock, err := a.prepareHost()
	if err != nil {
		return err
	}
	defer lock.Close()
	l, err := openAPI(cfg.API)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close() // closed already where it was served
	}
	client, err := x.connect(k)
	if err != nil {
		return err
	}
	defer client.Close()
	if x.runtime, err = openRuntime(k.Socket); err != nil {
		return err
	}
	defer x.runtime.Close()
	x.newWatch()
	x.spinups = newPodSpinups(cfg, x.metrics, opt.Log)
	pods, evacuator := x.newPodWatch(k, client), x.newEvacuator(client)
	p := tasks.NewStack()
	defer func() { err = errors.Join(err, p.Stop()) }()
	p.Start("kubernetes", x.reporter.Run)
	p.Start("records of spin-ups", x.spinups.Run)
	p.Start("spin-ups of pods", pods.Run)
	p.Start("doctor", x.watch.Run)
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

// connect makes the client and the reporter.
func (x *kubeNode) connect(k Kubernetes) (*kube.Client, error) {
	conf, err := kube.InCluster()
	if k.Kubeconfig != "" {
		conf, err = kube.Load(k.Kubeconfig, "")
	}
	if err != nil {
		return nil, err
	}
	m := node.NewMetrics(x.metrics)
	client, err := kube.New(conf, kube.Options{Agent: "holdfast-agent/" + x.opt.Version, Observe: m.Observe})
	if err != nil {
		return nil, err
	}
	namespace := k.Namespace
	if namespace == "" {
		namespace = conf.Namespace
	}
	x.reporter = node.New(client, node.Config{Node: x.cfg.Node, Namespace: namespace, Record: x.record, Taint: k.Taint}, m, x.opt.Log)
	return client, nil
}

// openRuntime returns the runtime behind a socket. It may come up later than we.
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

func (x *kubeNode) newWatch() {
	c := x.cfg.Doctor
	host := probe.Host{Proc: procfs.FS(c.Proc), Sys: c.Sys, Child: x.opt.Alloc, Scratch: x.cfg.DataDir}
	var err error
	if host.Groups, err = cgroup.Find(host.Proc); err != nil {
		x.opt.Log.Warn("the doctor sees no control groups", "err", err)
	}
	x.watch = watch.New(c.Watch, watch.Deps{
		Host: host, Engine: x.runtime, Store: watch.NewStore(x.cfg.DataDir, c.Watch.Keep, x.opt.Log), Metrics: watch.NewMetrics(x.metrics), Log: x.opt.Log,
		Changed: func(open []watch.Open) { x.reporter.Found(findings(open)) },
	})
}

// findings are those of the doctor, in Kubernetes' words.
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

// record is what the lease says of the host; nil before the doctor's first round.
func (x *kubeNode) record() *ranking.Record {
	facts, at := x.watch.Summary()
	if at.IsZero() {
		return nil
	}
	return &ranking.Record{Node: holdfast.NodeID(x.cfg.Node), At: at.UTC(), Kernel: x.kernel, Role: x.cfg.Doctor.Role, Facts: facts, Spinups: x.spinups.figures(at)}
}

// serve shows the figures.
func (x *kubeNode) serve(p *tasks.Stack, l net.Listener) error {
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: x.cfg.API.TokenFile, Read: x.cfg.API.ReadTokenFile}, x.opt.Log)
	if err != nil {
		return err
	}
	show := api.NewMetrics(api.Options{Tokens: tokens, Metrics: promhttp.HandlerFor(x.metrics, promhttp.HandlerOpts{}), Log: x.opt.Log})
	p.Start("api", func(ctx context.Context) error { return api.Serve(ctx, l, show, x.opt.Log) })
	return nil
}
