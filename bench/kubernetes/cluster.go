package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/bench/rig"
	"holdfast/internal/hosts/kube"
	"holdfast/test/lab/apiserver"
)

// object is any object.
type object = map[string]any

// account is the user of all agents.
const account = "system:serviceaccount:holdfast:holdfast-agent"

// namespace is the namespace of agents and their leases.
const namespace = "holdfast"

// realNode is the node of the real agent.
const realNode = "real"

// policy limits the audit log to the requests of agents.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ["` + account + `"]}
- {level: None}
`

// cluster is an API server and its etcd, each a process.
type cluster struct {
	o      Options
	dir    string
	etcd   *rig.Cluster
	server *apiserver.Server
	admin  *kube.Client
	ca     []byte
	tokens map[string]string // of agents, by node
	read   atomic.Int64      // bytes that the simulated agents have received
	sent   atomic.Int64
	dials  atomic.Int64
}

func startCluster(ctx context.Context, o Options, dir string) (*cluster, error) {
	c := &cluster{o: o, dir: dir, tokens: make(map[string]string)}
	var err error
	if c.etcd, err = rig.NewCluster(rig.ClusterOptions{Members: 1, Dir: dir, Role: o.Member}); err == nil {
		err = c.etcd.Start(ctx)
	}
	if err == nil {
		err = os.WriteFile(c.file("audit.yaml"), []byte(policy), 0o600)
	}
	if err == nil {
		c.server, err = apiserver.Start(ctx, apiserver.Options{Binary: o.APIServer, Dir: dir, Etcd: "http://" + c.etcd.Members[0].Client, Args: []string{
			"--audit-policy-file=" + c.file("audit.yaml"), "--audit-log-path=" + c.file(auditLog), "--audit-log-maxsize=100000"}})
	}
	if err == nil {
		c.ca, err = os.ReadFile(c.server.CAFile())
	}
	if err == nil {
		c.admin, err = kube.New(c.config(c.server.Token), kube.Options{Agent: "holdfast-bench"})
	}
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) config(token string) kube.Config {
	return kube.Config{Server: c.server.URL, CA: c.ca, Token: func(context.Context, bool) (string, error) { return token, nil }, Namespace: namespace}
}

// stop ends all parts.
func (c *cluster) stop() error {
	var err error
	if c.admin != nil {
		c.admin.Close()
	}
	if c.server != nil {
		err = c.server.Close()
	}
	if c.etcd != nil {
		c.etcd.Stop()
	}
	return err
}

// atOnce is the number of concurrent requests while the cluster is filled.
const atOnce = 16

// fill creates the agents' accounts, the nodes, and a token for each agent's pod.
func (c *cluster) fill(ctx context.Context) error {
	if err := Apply(ctx, c.admin, c.o.Manifests); err != nil {
		return err
	}
	names := []string{realNode}
	for i := range c.o.Nodes {
		names = append(names, fmt.Sprintf("node-%05d", i))
	}
	tokens := make([]string, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, name := range names {
		group.Go(func() (err error) {
			tokens[i], err = c.node(ctx, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("making the cluster: %w", err)
	}
	for i, name := range names {
		c.tokens[name] = tokens[i]
	}
	return nil
}

// node creates a node and its agent's pod, and returns the token of the pod.
func (c *cluster) node(ctx context.Context, name string) (string, error) {
	post := func(path string, body, out any) error {
		return c.admin.Raw(ctx, http.MethodPost, path, "application/json", body, out)
	}
	if err := post("/api/v1/nodes", object{"metadata": object{"name": name, "labels": object{"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a"}}}, nil); err != nil {
		return "", err
	}
	err := c.admin.Raw(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", "application/merge-patch+json", object{"status": nodeStatus()}, nil)
	if err != nil {
		return "", err
	}
	var pod kube.Pod
	err = post("/api/v1/namespaces/"+namespace+"/pods", object{
		"metadata": object{"name": "agent-" + name},
		"spec":     object{"nodeName": name, "serviceAccountName": "holdfast-agent", "containers": []object{{"name": "agent", "image": "none"}}},
	}, &pod)
	if err != nil {
		return "", err
	}
	var made struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	err = post("/api/v1/namespaces/"+namespace+"/serviceaccounts/holdfast-agent/token", object{"spec": object{
		"expirationSeconds": int(maxFor.Seconds()),
		"boundObjectRef":    object{"kind": "Pod", "apiVersion": "v1", "name": pod.Meta.Name, "uid": pod.Meta.UID},
	}}, &made)
	return made.Status.Token, err
}

// nodeStatus returns a status as large as a real one: a kubelet lists fifty images.
func nodeStatus() object {
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions, images []object
	for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		conditions = append(conditions, object{"type": kind, "status": "True", "reason": "Bench", "message": "as the bench wants it", "lastHeartbeatTime": now, "lastTransitionTime": now})
	}
	for i := range 50 {
		images = append(images, object{"sizeBytes": 100 << 20, "names": []string{
			fmt.Sprintf("registry.example.com/team/service-%02d@sha256:%064d", i, i), fmt.Sprintf("registry.example.com/team/service-%02d:v1", i)}})
	}
	return object{
		"conditions": conditions, "images": images,
		"capacity": object{"cpu": "64", "memory": "256Gi", "pods": "110"}, "allocatable": object{"cpu": "63", "memory": "250Gi", "pods": "110"},
		"nodeInfo": object{"kernelVersion": "6.1.0-bench", "containerRuntimeVersion": "containerd://1.7.0", "kubeletVersion": "v1.37.2", "osImage": "bench",
			"architecture": "amd64", "bootID": "", "machineID": "", "systemUUID": "", "kubeProxyVersion": "", "operatingSystem": "linux"},
	}
}

// dial connects for an agent, and counts the bytes of the connection.
func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.dials.Add(1)
	return &counted{Conn: conn, c: c}, nil
}

type counted struct {
	net.Conn
	c *cluster
}

func (x *counted) Read(b []byte) (int, error) {
	n, err := x.Conn.Read(b)
	x.c.read.Add(int64(n))
	return n, err
}

func (x *counted) Write(b []byte) (int, error) {
	n, err := x.Conn.Write(b)
	x.c.sent.Add(int64(n))
	return n, err
}
