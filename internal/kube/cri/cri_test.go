package cri_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
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

	"holdfast"
	"holdfast/internal/kube/cri"
	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

const image = "localhost/busybox:latest"

// containerd starts a private one and returns its socket.
func containerd(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: containerd needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	config := filepath.Join(dir, "config.toml")
	text := "version = 2\nroot = '" + dir + "/root'\nstate = '" + dir + "/state'\n[grpc]\naddress = '" + socket + "'\n" +
		"[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = '" + image + "'\ndisable_apparmor = true\nrestrict_oom_score_adj = true\n" +
		"[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'native'\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("containerd", "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails where it has ended
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s", text[max(0, len(text)-3000):])
		}
	})
	load(t, socket, dir)
	return socket
}

// load gives it busybox, which is the pause image, too.
func load(t *testing.T, socket, dir string) {
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
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture = "linux", goruntime.GOARCH // else it is taken for another machine's
	conf.Config = v1.Config{Cmd: []string{"/bin/busybox", "sleep", "3600"}}
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "image.tar")
	if err := tarball.WriteToFile(file, name.MustParseReference(image), img); err != nil {
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

// pod runs one with a container, in the host's network, as the kubelet would.
func pod(t *testing.T, c runtime.RuntimeServiceClient) (sandbox, container string) {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.name": "web-1", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "u-1"}
	conf := &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: "web-1", Namespace: "shop", Uid: "u-1"}, Labels: labels, LogDirectory: t.TempDir(),
		Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}}},
	}
	box, err := c.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := c.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: box.PodSandboxId}); err != nil {
			t.Error(err)
		}
	})
	mine := map[string]string{"io.kubernetes.container.name": "nginx"}
	for k, v := range labels {
		mine[k] = v
	}
	made, err := c.CreateContainer(t.Context(), &runtime.CreateContainerRequest{PodSandboxId: box.PodSandboxId, SandboxConfig: conf, Config: &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "nginx"}, Image: &runtime.ImageSpec{Image: image}, Labels: mine, LogPath: "log",
		Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{NamespaceOptions: &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartContainer(t.Context(), &runtime.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return box.PodSandboxId, made.ContainerId
}

func TestList(t *testing.T) {
	socket := containerd(t)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	sandbox, container := pod(t, runtime.NewRuntimeServiceClient(conn))
	r, err := cri.Open("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if v, err := r.Version(t.Context()); err != nil || !strings.HasPrefix(v, "containerd ") {
		t.Errorf("version %q, %v", v, err)
	}
	list, err := r.List(t.Context(), nil)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, c := range list {
		switch {
		case c.Labels["io.kubernetes.pod.name"] != "web-1" || c.State != "running" || time.Since(c.Created) > time.Hour:
			t.Errorf("%+v", c)
		case c.ID == container && c.Name == "nginx" && c.Labels["io.kubernetes.container.name"] == "nginx" && strings.Contains(c.Image, "busybox"):
		case c.ID == sandbox && c.Name == "POD":
		default:
			t.Errorf("%+v", c)
		}
	}
	some, err := r.List(t.Context(), map[string]string{"io.kubernetes.container.name": ""})
	if err != nil || len(some) != 1 || some[0].ID != container {
		t.Errorf("with a label: %+v, %v", some, err)
	}
}

func TestNoRuntime(t *testing.T) {
	if _, err := cri.Open("containerd.sock"); holdfast.HintOf(err) == "" {
		t.Errorf("a path that is none: %v", err)
	}
	r, err := cri.Open(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.List(t.Context(), nil); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("a runtime that is not there: %v", err)
	}
}
