package cri_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/test/kube/critest"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

func TestList(t *testing.T) {
	c := critest.Start(t)
	p := &critest.Pod{Namespace: "shop", Name: "web-1", UID: "u-1"}
	sandbox := c.Sandbox(t, p)
	container := c.Run(t, p, "nginx", critest.Image)
	r, err := cri.Open("unix://" + c.Socket)
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
		t.Errorf("a relative path: %v", err)
	}
	r, err := cri.Open(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.List(t.Context(), nil); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("a missing runtime: %v", err)
	}
}
