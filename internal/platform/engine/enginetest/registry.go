package enginetest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// layerSize is the size of a layer in bytes: enough for more than one event.
const layerSize = 2 << 20

// registry serves one image, under the tag good, on loopback, where engines allow
// plain HTTP. It implements the part of the distribution specification that a pull
// needs (opencontainers/distribution-spec, "Pull"), and fails on demand.
type registry struct {
	host    string
	image   v1.Image
	layers  []string // digests
	corrupt string   // digest of a blob that is served with a byte changed
	release chan struct{}
}

// newRegistry starts a registry that ends with the test.
func newRegistry(t *testing.T, layers int64) *registry {
	t.Helper()
	image, err := random.Image(layerSize, layers)
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{image: image}
	list, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		r.layers = append(r.layers, digest.String())
	}
	server := httptest.NewServer(r)
	r.host = strings.TrimPrefix(server.URL, "http://")
	t.Cleanup(server.Close)
	// This has to run before the server's Close, which waits for requests.
	t.Cleanup(sync.OnceFunc(func() {
		if r.release != nil {
			close(r.release)
		}
	}))
	return r
}

func (r *registry) ref(tag string) string { return fmt.Sprintf("%s/test/image:%s", r.host, tag) }

// stall makes every layer hang before its last byte.
func (r *registry) stall() { r.release = make(chan struct{}) }

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v2/" {
		return
	}
	kind, name, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/test/image/"), "/")
	switch {
	case ok && kind == "manifests":
		r.manifest(w, name)
	case ok && kind == "blobs":
		r.blob(w, req, name)
	default:
		http.NotFound(w, req)
	}
}

func (r *registry) manifest(w http.ResponseWriter, name string) {
	digest, err := r.image.Digest()
	if err != nil || name != "good" && name != digest.String() {
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
		return
	}
	raw, err := r.image.RawManifest()
	kind, kindErr := r.image.MediaType()
	if err != nil || kindErr != nil {
		http.Error(w, "no manifest", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(kind))
	w.Header().Set("Docker-Content-Digest", digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
	_, _ = w.Write(raw) // the engine may have gone
}

func (r *registry) blob(w http.ResponseWriter, req *http.Request, name string) {
	data, err := r.read(name)
	if err != nil {
		http.NotFound(w, req)
		return
	}
	if name == r.corrupt {
		data[len(data)/2] ^= 0xff
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if r.release == nil || len(data) < layerSize {
		_, _ = w.Write(data)
		return
	}
	_, _ = w.Write(data[:len(data)-1])
	if err := http.NewResponseController(w).Flush(); err != nil {
		return
	}
	select {
	case <-r.release:
	case <-req.Context().Done():
	}
}

// read returns a blob: the config or a layer.
func (r *registry) read(name string) ([]byte, error) {
	if config, err := r.image.ConfigName(); err == nil && config.String() == name {
		return r.image.RawConfigFile()
	}
	hash, err := v1.NewHash(name)
	if err != nil {
		return nil, err
	}
	layer, err := r.image.LayerByDigest(hash)
	if err != nil {
		return nil, err
	}
	stream, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return io.ReadAll(stream)
}
