// Package critest gives tests a real container runtime with the interface of Kubernetes (CRI):
// a private containerd with its CRI plugin, without a kubelet.
package critest

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast/test/kube/kubetest"
	"holdfast/test/lab"
)

// Image is busybox, and also the pause image. Every Runtime has it.
const Image = "localhost/busybox:latest"

// Runtime is a private containerd.
type Runtime struct {
	Socket string
	Pods   runtime.RuntimeServiceClient
	Images runtime.ImageServiceClient
	logs   string
}

// Start starts a Runtime for one test. -short skips the test.
func Start(t *testing.T) *Runtime {
	t.Helper()
	socket := containerd(t)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &Runtime{Socket: socket, Pods: runtime.NewRuntimeServiceClient(conn), Images: runtime.NewImageServiceClient(conn), logs: t.TempDir()}
}

// containerd starts a private containerd and returns its socket.
func containerd(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: containerd needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	config := filepath.Join(dir, "config.toml")
	text := "version = 2\nroot = '" + dir + "/root'\nstate = '" + dir + "/state'\n[grpc]\naddress = '" + socket + "'\n" +
		"[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = '" + Image + "'\ndisable_apparmor = true\nrestrict_oom_score_adj = true\n" +
		"[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'native'\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kubetest.Daemon(t, dir, "containerd", "--config", config)
	load(t, socket, dir)
	return socket
}

// load loads Image.
func load(t *testing.T, socket, dir string) {
	t.Helper()
	file := filepath.Join(dir, "image.tar")
	if err := tarball.WriteToFile(file, name.MustParseReference(Image), Busybox(t)); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.CommandContext(t.Context(), "ctr", "-a", socket, "-n", "k8s.io", "images", "import", file).CombinedOutput()
		if err == nil {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("import: %v\n%s", err, out)
		}
	}
}

// Busybox returns an image for this machine that sleeps for an hour. A different layer makes a
// different image.
func Busybox(t *testing.T, more ...v1.Layer) v1.Image {
	t.Helper()
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	root, err := busybox.Tar()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, append([]v1.Layer{layer}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture = "linux", goruntime.GOARCH // otherwise the runtime refuses the architecture
	conf.Config = v1.Config{Cmd: []string{"/bin/busybox", "sleep", "3600"}}
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		t.Fatal(err)
	}
	return img
}

// Pod is a pod as a kubelet would request it from the runtime.
type Pod struct {
	Namespace, Name, UID string
	Annotations          map[string]string
	Privileged           bool
	Mounts               map[string]string // files of the host, read-only, by path in the container
	sandbox              string
	conf                 *runtime.PodSandboxConfig
}

const (
	own  = runtime.NamespaceMode_CONTAINER
	host = runtime.NamespaceMode_NODE
)

// Sandbox creates the pod's sandbox, in the host's network, until the test ends. It returns the
// id.
func (r *Runtime) Sandbox(t *testing.T, p *Pod) string {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID}
	p.conf = &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID}, Labels: labels, Annotations: p.Annotations, LogDirectory: r.logs,
		Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{Privileged: p.Privileged, NamespaceOptions: &runtime.NamespaceOption{Network: host, Pid: own}}},
	}
	box, err := r.Pods.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: p.conf})
	if err != nil {
		t.Fatal(err)
	}
	p.sandbox = box.PodSandboxId
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := r.Pods.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: box.PodSandboxId}); err != nil {
			t.Error(err)
		}
	})
	return p.sandbox
}

// Create creates a container in the pod from a local image, and returns its id. Without a
// command the container sleeps for an hour.
func (r *Runtime) Create(t *testing.T, p *Pod, container, image string, command ...string) string {
	t.Helper()
	labels := map[string]string{"io.kubernetes.container.name": container}
	for k, v := range p.conf.Labels {
		labels[k] = v
	}
	var mounts []*runtime.Mount
	for in, on := range p.Mounts {
		mounts = append(mounts, &runtime.Mount{ContainerPath: in, HostPath: on, Readonly: true})
	}
	made, err := r.Pods.CreateContainer(t.Context(), &runtime.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.conf, Config: &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: container}, Image: &runtime.ImageSpec{Image: image}, Command: command, Labels: labels, LogPath: container + ".log", Mounts: mounts,
		Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"},
		Linux:       &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{Privileged: p.Privileged, NamespaceOptions: &runtime.NamespaceOption{Network: host, Pid: own}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return made.ContainerId
}

// Run creates and starts a container.
func (r *Runtime) Run(t *testing.T, p *Pod, container, image string, command ...string) string {
	t.Helper()
	id := r.Create(t, p, container, image, command...)
	if _, err := r.Pods.StartContainer(t.Context(), &runtime.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	return id
}
