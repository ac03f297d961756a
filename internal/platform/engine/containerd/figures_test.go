package containerd_test

import (
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// figures: a pull reports phases and exact bytes. A second image with shared layers
// fetches only its own layers. A pull of a present image fetches nothing.
func figures(t *testing.T, e *containerd.Engine, _ *lab.Containerd) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	base, err := random.Image(3<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := random.Layer(1<<20, "application/vnd.docker.image.rootfs.diff.tar.gzip")
	if err != nil {
		t.Fatal(err)
	}
	child, err := mutate.AppendLayers(base, layer)
	if err != nil {
		t.Fatal(err)
	}
	pull := func(image v1.Image, ref string) spinup.Pull {
		t.Helper()
		tag, err := name.NewTag(host + "/" + ref)
		if err == nil {
			err = remote.Write(tag, image)
		}
		if err != nil {
			t.Fatal(err)
		}
		o := spinup.Options{Image: tag.String(), Begun: time.Now(), ImageStore: engine.ClientStore}
		p, err := spinup.Reduce(o, e.Pull(t.Context(), tag.String(), engine.PullOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := pull(base, "base:1")
	if want := size(t, base); first.Download.Bytes != want || !first.Download.Exact || !first.Extract.Exact || first.Extract.Bytes != want || first.Joined || first.Cached {
		t.Errorf("of %d bytes: %+v", want, first)
	}
	if first.Download.Wall <= 0 || first.Extract.Wall <= 0 || first.Download.Rate <= 0 || len(first.Layers) != 3 || first.Took < first.Extract.Wall {
		t.Errorf("its phases: %+v", first)
	}
	second := pull(child, "child:1")
	if want := size(t, child) - size(t, base); second.Download.Bytes != want || !second.Download.Exact || second.Joined || len(second.Layers) != 4 {
		t.Errorf("of %d bytes: %+v", want, second)
	}
	if again := pull(child, "child:1"); !again.Cached || again.Download.Bytes != 0 || again.Joined {
		t.Errorf("of a present image: %+v", again)
	}
	for _, ref := range []string{"base:1", "child:1"} {
		if err := e.RemoveImage(t.Context(), fmt.Sprintf("%s/%s", host, ref)); err != nil {
			t.Error(err)
		}
	}
	// The error for an image of another platform has the words by which spinup
	// recognises the cause.
	if _, err := e.Create(t.Context(), engine.Spec{Image: labtest.TestServer, Platform: "linux/s390x"}); spinup.CauseOf(err) != spinup.NoPlatform {
		t.Errorf("an image of another platform: %v", err)
	}
}

// size is the compressed size of an image's layers.
func size(t *testing.T, image v1.Image) int64 {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
