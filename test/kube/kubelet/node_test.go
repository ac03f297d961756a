package kubelet_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"holdfast/bench/kubernetes"
	"holdfast/internal/hosts/kube"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab"
	"holdfast/test/lab/apiserver"
	"holdfast/test/lab/labtest"
)

// Paths and names on the node.
const (
	nodeName   = "worker"
	pauseImage = "localhost/pause:latest"
	ourImage   = "localhost/holdfast:latest"
	runDir     = "/run/containerd"
	socket     = runDir + "/containerd.sock" // as in the manifests
)

// worker is a node with a kubelet.
type worker struct {
	*kubetest.Server
	name, dir, socket string
	kubelet           *os.Process
}

// startWorker starts an API server, containerd and a kubelet, and waits until the node exists.
func startWorker(t *testing.T) worker {
	t.Helper()
	return startWorkers(t, nodeName)[0]
}

// startWorkers starts an API server, and for each name a containerd and a kubelet. It waits
// until the nodes exist.
func startWorkers(t *testing.T, names ...string) (list []worker) {
	t.Helper()
	kubelet, err := kubetest.Binary(t.Context(), kubetest.Kubelet)
	if err != nil {
		t.Fatal(err)
	}
	var users []apiserver.User
	for _, name := range names {
		users = append(users, apiserver.User{Token: rand.Text(), Name: "system:node:" + name, Groups: []string{"system:nodes"}})
	}
	server, err := kubetest.Open(t.Context(), t.TempDir(), users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	disguise(t)
	for _, path := range []string{"/var/lib/kubelet", "/var/lib/holdfast", "/var/log", runDir} {
		cover(t, path)
	}
	for i, name := range names {
		w := worker{Server: server, name: name, dir: t.TempDir(), socket: socket}
		if i > 0 {
			w.socket = filepath.Join(runDir, name+".sock")
		}
		w.startKubelet(t, kubelet, users[i].Token, i)
		list = append(list, w)
	}
	return list
}

// startKubelet starts a node's containerd and its kubelet, the nth on the host.
func (w *worker) startKubelet(t *testing.T, kubelet, token string, n int) {
	t.Helper()
	root, logs := "/var/lib/kubelet", "/var/log/pods"
	if n > 0 {
		root, logs = filepath.Join(root, w.name), logs+"-"+w.name
	}
	group := "holdfast-kubelet-" + strings.ToLower(rand.Text()[:8])
	groupOf(t, group)
	w.startContainerd(t)
	w.write(t, "kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"k","contexts":[{"name":"k","context":{"cluster":"k","user":"k"}}],`+
		`"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"k","user":{"token":%q}}]}`, w.URL, w.CAFile(), token))
	w.write(t, "kubelet.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /`+group+`
containerRuntimeEndpoint: unix://`+w.socket+`
podLogsDir: `+logs+`
address: 127.0.0.1
port: `+fmt.Sprint(10250+n)+`
readOnlyPort: 0
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}
`)
	w.kubelet = kubetest.Daemon(t, w.dir, kubelet, "--config="+w.file("kubelet.yaml"), "--kubeconfig="+w.file("kubeconfig"), "--hostname-override="+w.name, "--root-dir="+root,
		"--node-ip=127.0.0.1", "--v=2")
	kubetest.Await(t, "the kubelet has made its node", func() bool {
		_, err := w.Client().Node(t.Context(), w.name)
		return err == nil
	})
}

func (w worker) file(name string) string { return filepath.Join(w.dir, name) }

func (w worker) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(w.file(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startContainerd starts a containerd with an image of holdfast and an image that sleeps.
func (w worker) startContainerd(t *testing.T) {
	t.Helper()
	w.write(t, "containerd.toml", "version = 2\nroot = '"+w.dir+"/containerd'\nstate = '"+w.socket+"-state'\n[grpc]\naddress = '"+w.socket+"'\n"+
		"[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = '"+pauseImage+"'\ndisable_apparmor = true\nrestrict_oom_score_adj = true\n"+
		"[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'native'\n"+
		"[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '"+w.dir+"'\n")
	kubetest.Daemon(t, w.dir, "containerd", "--config", w.file("containerd.toml"))
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	busybox.Files["/holdfast"] = build(t, w.dir) // in addition to a shell
	w.load(t, busybox, pauseImage, v1.Config{Cmd: []string{"/bin/busybox", "sleep", "36000"}})
	w.load(t, busybox, ourImage, v1.Config{Entrypoint: []string{"/holdfast"}})
}

// build builds holdfast in a directory.
func build(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "holdfast")
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", program, "-ldflags", "-s -w"); err != nil {
		t.Fatal(err)
	}
	return program
}

// load loads an image into containerd.
func (w worker) load(t *testing.T, files lab.Image, ref string, conf v1.Config) {
	t.Helper()
	root, err := files.Tar()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	was, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	is := was.DeepCopy()
	is.OS, is.Architecture, is.Config = "linux", goruntime.GOARCH, conf
	if img, err = mutate.ConfigFile(img, is); err != nil {
		t.Fatal(err)
	}
	file := w.file("image.tar")
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, parsed, img); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.CommandContext(t.Context(), "ctr", "-a", w.socket, "-n", "k8s.io", "images", "import", file).CombinedOutput()
		if err == nil {
			return
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("import: %v\n%s", err, out)
		}
	}
}

// run creates a pod on the node, in the host's network, with labels (alternating keys and
// values), and waits until it runs.
func (w worker) run(t *testing.T, namespace, name string, spec kubetest.Object, labels ...string) {
	t.Helper()
	spec["nodeName"], spec["hostNetwork"] = nodeName, true
	path := "/api/v1/namespaces/" + namespace + "/pods"
	with := kubetest.Object{}
	for kv := range slices.Chunk(labels, 2) {
		with[kv[0]] = kv[1]
	}
	meta := kubetest.Object{"name": name, "labels": with}
	w.Must(t, http.MethodPost, path, kubetest.Object{"metadata": meta, "spec": spec}, nil)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob("/var/log/pods*/" + namespace + "_" + name + "_*/*/*.log")
			for _, file := range logs {
				text, _ := os.ReadFile(file)
				t.Logf("%s:\n%s", file, text[max(0, len(text)-4000):])
			}
		}
		_ = w.Do(context.Background(), http.MethodDelete, path+"/"+name, kubetest.Object{"gracePeriodSeconds": 1}, nil) // an error: the kubelet is gone
	})
	var pod kube.Pod
	defer func() {
		if t.Failed() {
			var events any
			_ = w.Do(context.Background(), http.MethodGet, "/api/v1/namespaces/"+namespace+"/events", nil, &events)
			t.Logf("pod %s: %+v\nevents: %v", name, pod.Status, events)
		}
	}()
	kubetest.Await(t, "pod "+name+" runs", func() bool {
		var err error
		pod, err = w.Client().Pod(t.Context(), namespace, name)
		return err == nil && pod.Status.Phase == "Running" && pod.Ready()
	})
}

// deploy is the directory of the manifests.
const deploy = "../../../deploy/kubernetes"

// agentSpec returns the DaemonSet's pod with a configuration, and with what the controllers of a
// cluster would add: the token of the account, and the address of the API server.
func (w worker) agentSpec(t *testing.T, config string) kubetest.Object {
	t.Helper()
	w.apply(t, deploy)
	var set kubetest.Object
	w.Must(t, http.MethodGet, daemonSet, nil, &set)
	spec := kubetest.Object(at(set, "spec", "template", "spec"))
	ca, err := os.ReadFile(w.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	w.Must(t, http.MethodPost, "/api/v1/namespaces/holdfast/configmaps", kubetest.Object{"metadata": kubetest.Object{"name": "kube-root-ca.crt"}, "data": kubetest.Object{"ca.crt": string(ca)}}, nil)
	w.Must(t, http.MethodPost, "/api/v1/namespaces/holdfast/configmaps", kubetest.Object{"metadata": kubetest.Object{"name": "quick"},
		"data": kubetest.Object{"holdfast.yaml": config}}, nil)
	u, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	agent := spec["containers"].([]any)[0].(map[string]any)
	agent["image"], agent["imagePullPolicy"] = ourImage, "Never"
	agent["args"] = append(agent["args"].([]any), "--config=/etc/quick/holdfast.yaml")
	agent["env"] = append(agent["env"].([]any), kubetest.Object{"name": "KUBERNETES_SERVICE_HOST", "value": u.Hostname()}, kubetest.Object{"name": "KUBERNETES_SERVICE_PORT", "value": u.Port()})
	agent["volumeMounts"] = append(agent["volumeMounts"].([]any),
		kubetest.Object{"name": "account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
		kubetest.Object{"name": "quick", "mountPath": "/etc/quick", "readOnly": true})
	spec["volumes"] = append(spec["volumes"].([]any),
		kubetest.Object{"name": "quick", "configMap": kubetest.Object{"name": "quick"}},
		kubetest.Object{"name": "account", "projected": kubetest.Object{"sources": []kubetest.Object{
			{"serviceAccountToken": kubetest.Object{"path": "token", "expirationSeconds": 3607}},
			{"configMap": kubetest.Object{"name": "kube-root-ca.crt"}},
			{"downwardAPI": kubetest.Object{"items": []kubetest.Object{{"path": "namespace", "fieldRef": kubetest.Object{"fieldPath": "metadata.namespace"}}}}},
		}}})
	return spec
}

const daemonSet = "/apis/apps/v1/namespaces/holdfast/daemonsets/holdfast-agent"

// apply creates the missing objects of a directory of manifests.
func (w worker) apply(t *testing.T, dir string) {
	t.Helper()
	if err := kubernetes.Apply(t.Context(), w.Client(), dir); err != nil {
		t.Fatal(err)
	}
}

// component adds a component to the manifests, with words of its patch replaced.
func (w worker) component(t *testing.T, name, old, now string) {
	t.Helper()
	dir := filepath.Join(deploy, "components", name)
	w.apply(t, deploy)
	w.apply(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("there is no %q in component %s", old, name)
	}
	var patch []kubetest.Object
	if err := yaml.Unmarshal([]byte(strings.Replace(string(text), old, now, 1)), &patch); err != nil {
		t.Fatal(err)
	}
	if err := w.Client().Raw(t.Context(), http.MethodPatch, daemonSet, "application/json-patch+json", patch, nil); err != nil {
		t.Fatal(err)
	}
}

// at returns the field at a path of an object.
func at(o map[string]any, path ...string) map[string]any {
	for _, p := range path {
		o = o[p].(map[string]any)
	}
	return o
}
