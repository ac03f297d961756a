package pods_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/kube/podwatch"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/kube/critest"
	"holdfast/test/kube/kubetest"
)

// kept has the records of a watcher, by the name of the container.
type kept struct {
	mu  sync.Mutex
	all map[string]spinup.Record
	err error // a record arrived twice
}

func (k *kept) add(r spinup.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, twice := k.all[r.Name]; twice {
		k.err = fmt.Errorf("%s was recorded twice", r.Name)
	}
	k.all[r.Name] = r
}

func (k *kept) get(name string) (spinup.Record, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.all[name]
	return r, ok
}

// watch runs a watcher until the test ends.
func watch(t *testing.T, c *critest.Runtime, conf podwatch.Config) *kept {
	t.Helper()
	r, err := cri.Open(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &kept{all: map[string]spinup.Record{}}
	conf.Node, conf.Record, conf.Log, conf.Every = "mine", k.add, quiet(), 200*time.Millisecond
	w := podwatch.New(r, conf)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.err != nil {
			t.Error(k.err)
		}
	})
	return k
}

// pull makes the runtime pull an image of some size from a registry, as a kubelet would. It
// returns the image's name and the duration.
func pull(t *testing.T, c *critest.Runtime, mib int64) (image string, took time.Duration) {
	t.Helper()
	layer, err := random.Layer(mib<<20, types.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	image = strings.TrimPrefix(server.URL, "http://") + "/app:1"
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, critest.Busybox(t, layer)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := c.Images.PullImage(t.Context(), &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}
	return image, time.Since(begin)
}

// pod creates a pod in the API server, on the node mine, and returns it.
func pod(t *testing.T, s *kubetest.Server, podName string, spec kubetest.Object) kube.Pod {
	t.Helper()
	spec["nodeName"] = "mine"
	var p kube.Pod
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": kubetest.Object{"name": podName}, "spec": spec}, &p)
	return p
}

// told writes an event as a kubelet does.
func told(t *testing.T, s *kubetest.Server, p kube.Pod, container, message string, at time.Time) {
	t.Helper()
	stamp := at.UTC().Format(time.RFC3339)
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/events", kubetest.Object{
		"metadata":       kubetest.Object{"generateName": p.Meta.Name + ".", "namespace": "default"},
		"involvedObject": kubetest.Object{"kind": "Pod", "namespace": "default", "name": p.Meta.Name, "uid": p.Meta.UID, "fieldPath": "spec.containers{" + container + "}"},
		"reason":         "Pulled", "type": "Normal", "message": message, "source": kubetest.Object{"component": "kubelet", "host": "mine"},
		"firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
	}, nil)
}

// The containers of a pod are recorded with the times of the runtime, and with the kubelet's
// events about the pull and the readiness.
func TestSpinUps(t *testing.T) {
	c := critest.Start(t)
	s := cluster(t)
	s.Node(t, "mine", nil)
	var asked sync.Map
	conf := s.Config()
	client, err := kube.New(conf, kube.Options{Observe: func(verb string, _ int, _ time.Duration) {
		n, _ := asked.LoadOrStore(verb, 0)
		asked.Store(verb, n.(int)+1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	bare := watch(t, c, podwatch.Config{})
	// The pod is ready before the one query. The next query would come minutes later.
	full := watch(t, c, podwatch.Config{Cluster: client, Settle: 5 * time.Second})

	spec := kubetest.PodSpec()
	probe := kubetest.Object{"exec": kubetest.Object{"command": []string{"true"}}}
	spec["containers"] = []kubetest.Object{{"name": "app", "image": "app:1", "readinessProbe": probe}, {"name": "side", "image": "busybox"}}
	p := pod(t, s, "web-1", spec)
	seen := time.Now()
	there := &critest.Pod{Namespace: "default", Name: "web-1", UID: p.Meta.UID, Annotations: map[string]string{"kubernetes.io/config.seen": seen.Format(time.RFC3339Nano)}}
	c.Sandbox(t, there)
	time.Sleep(500 * time.Millisecond) // the watcher looks once without the image, as during a long pull
	image, took := pull(t, c, 8)
	told(t, s, p, "app", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", image, took.Truncate(time.Millisecond), took.Truncate(time.Millisecond), 8<<20), time.Now())
	c.Run(t, there, "app", image)
	told(t, s, p, "side", fmt.Sprintf("Container image %q already present on machine", critest.Image), time.Now())
	c.Run(t, there, "side", critest.Image)
	up := time.Now()
	s.Must(t, http.MethodPatch, "/api/v1/namespaces/default/pods/web-1/status", kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{
		{"type": "Ready", "status": "True", "lastTransitionTime": up.Add(3 * time.Second).UTC().Format(time.RFC3339)}}}}, nil)
	broken := &critest.Pod{Namespace: "default", Name: "bad", UID: "u-bad"}
	c.Sandbox(t, broken)
	id := c.Create(t, broken, "bad", critest.Image, "/no/such/program")
	if _, err := c.Pods.StartContainer(t.Context(), &runtime.StartContainerRequest{ContainerId: id}); err == nil {
		t.Fatal("a program that is not there was started")
	}

	for source, k := range map[string]*kept{"the runtime alone": bare, "with the API server": full} {
		kubetest.Await(t, "all are recorded by "+source, func() bool {
			_, a := k.get("app")
			_, b := k.get("side")
			_, c := k.get("bad")
			return a && b && c
		})
		app, _ := k.get("app")
		side, _ := k.get("side")
		bad, _ := k.get("bad")
		for _, r := range []spinup.Record{app, side, bad} {
			if err := r.Validate(); err != nil || r.Kind != spinup.ForPod || !strings.HasPrefix(r.Cohort.Engine, "containerd ") || r.Cohort.Host != "mine" {
				t.Errorf("%s: %+v, %v", source, r, err)
			}
		}
		if app.Outcome != spinup.OK || app.Job != "default/web-1" || app.Begun.Sub(seen).Abs() > time.Microsecond || app.Times[spinup.Start] <= 0 ||
			app.Pull == nil || app.Pull.Cached || !app.Pull.Whole || time.Duration(app.Times[spinup.Download]) < took.Truncate(time.Millisecond) {
			t.Errorf("%s: what was pulled: %+v, pull %+v", source, app, app.Pull)
		}
		if side.Outcome != spinup.OK || !side.Begun.After(app.Begun) || side.Times[spinup.Start] <= 0 {
			t.Errorf("%s: the second container: %+v", source, side)
		}
		if bad.Outcome != spinup.Failed || bad.Failed != spinup.Start || !strings.Contains(bad.Error, "/no/such/program") {
			t.Errorf("%s: what did not start: %+v", source, bad)
		}
	}
	app, _ := full.get("app")
	side, _ := full.get("side")
	if ready := time.Duration(app.Times[spinup.Ready]); ready < time.Second || ready > 4*time.Second {
		t.Errorf("it was ready 3 s after its start, in whole seconds: %+v", app)
	}
	if _, made := app.Times[spinup.Create]; !made || app.Pull.Download.Bytes != 8<<20 || app.Pull.Download.Rate <= 0 {
		t.Errorf("the pull by the kubelet's words: %+v, %+v", app, app.Pull)
	}
	if _, made := side.Times[spinup.Create]; !made || side.Pull == nil || !side.Pull.Cached || len(side.Times) != 2 {
		t.Errorf("what was there: %+v", side)
	}
	if side, _ := bare.get("side"); side.Pull != nil || len(side.Times) != 1 {
		t.Errorf("how long a second container was made is not known by the runtime alone: %+v", side)
	}
	gets, _ := asked.Load("get")
	lists, _ := asked.Load("list")
	if gets != 1 || lists != 1 {
		t.Errorf("the API server was asked for %v pods and %v lists of events, for one pod", gets, lists)
	}
	stuck(t, c, s, client)
}

// stuck creates a pod whose image does not arrive. The failed pull is recorded once, with the
// API server's reason if the agent may read it.
func stuck(t *testing.T, c *critest.Runtime, s *kubetest.Server, client *kube.Client) {
	t.Helper()
	spec := kubetest.PodSpec()
	spec["initContainers"] = []kubetest.Object{{"name": "init", "image": "example.org/none:1"}}
	p := pod(t, s, "late", spec)
	s.Must(t, http.MethodPatch, "/api/v1/namespaces/default/pods/late/status", kubetest.Object{"status": kubetest.Object{
		"initContainerStatuses": []kubetest.Object{{"name": "init", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
			"state": kubetest.Object{"waiting": kubetest.Object{"reason": "ImagePullBackOff", "message": "pull access denied, repository does not exist or may require authorization"}}}},
		"containerStatuses": []kubetest.Object{{"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
			"state": kubetest.Object{"waiting": kubetest.Object{"reason": "PodInitializing"}}}},
	}}, nil)
	c.Sandbox(t, &critest.Pod{Namespace: "default", Name: "late", UID: p.Meta.UID})
	bare := watch(t, c, podwatch.Config{Stuck: 300 * time.Millisecond})
	full := watch(t, c, podwatch.Config{Cluster: client, Stuck: 300 * time.Millisecond})
	for name, k := range map[string]*kept{"": bare, "init": full} {
		kubetest.Await(t, "it is recorded that a pod waits", func() bool { _, ok := k.get(name); return ok })
		r, _ := k.get(name)
		if err := r.Validate(); err != nil || r.Outcome != spinup.Failed || r.Failed != spinup.Download || r.Job != "default/late" || r.Times[spinup.Download] <= 0 {
			t.Errorf("a pull that does not end: %+v, %v", r, err)
		}
	}
	if r, _ := full.get("init"); r.Image != "example.org/none:1" || r.Cause != spinup.Denied && r.Cause != spinup.NoImage || !strings.Contains(r.Error, "ImagePullBackOff") {
		t.Errorf("by the API server's words: %+v", r)
	}
}

// An agent without the rights logs that once, and continues without the API server.
func TestSpinUpsWithoutRights(t *testing.T) {
	c := critest.Start(t)
	s := cluster(t)
	s.Node(t, "mine", nil)
	conf := s.Config()
	conf.AsUser = "nobody"
	tries := make(chan string, 100)
	client, err := kube.New(conf, kube.Options{Observe: func(verb string, _ int, _ time.Duration) { tries <- verb }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	k := watch(t, c, podwatch.Config{Cluster: client, Settle: 100 * time.Millisecond})
	for _, n := range []string{"one", "two"} {
		p := &critest.Pod{Namespace: "default", Name: n, UID: "u-" + n}
		c.Sandbox(t, p)
		c.Run(t, p, n, critest.Image)
		kubetest.Await(t, "it is recorded", func() bool { _, ok := k.get(n); return ok })
	}
	if len(tries) != 1 {
		t.Errorf("the API server was queried %d times without the right", len(tries))
	}
}
