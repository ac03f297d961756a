package puller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// maxAnswer is the maximum number of bytes that are read of an answer. Registries
// refuse manifests over 4 MiB (OCI distribution-spec, "Pushing Manifests").
const maxAnswer = 4 << 20

// Registries queries the registries for manifests. The engine may reach a registry
// through a mirror, a proxy, or with a certificate that only the engine trusts. Such a
// registry may be unreachable from here; the sizes then stay unknown.
//
// Docker Hub is not queried: it counts each request for a manifest as a pull
// (https://docs.docker.com/docker-hub/usage/pulls/).
type Registries struct{}

// errCounted is why Docker Hub is not queried.
var errCounted = errors.New("the registry would count the query as a pull")

// Sizes returns the compressed sizes of an image's layers in bytes, by digest.
func (Registries) Sizes(ctx context.Context, image, platform string, l engine.Login) (map[string]int64, error) {
	sizes, err := sizesOf(ctx, image, platform, l)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %s: %w", image, err)
	}
	return sizes, nil
}

func sizesOf(ctx context.Context, image, platform string, l engine.Login) (map[string]int64, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	if ref.Context().RegistryStr() == name.DefaultRegistry {
		return nil, errCounted
	}
	wanted := &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if platform != "" {
		if wanted, err = v1.ParsePlatform(platform); err != nil {
			return nil, err
		}
	}
	// One transport for one query: it leaves no connection behind.
	base := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	defer base.CloseIdleConnections()
	d, err := remote.Get(ref, remote.WithContext(ctx), remote.WithAuth(authn.FromConfig(authn.AuthConfig{
		Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken,
	})), remote.WithPlatform(*wanted), remote.WithTransport(boundedTransport{base}))
	if err != nil {
		return nil, err
	}
	one, err := d.Image()
	if err != nil {
		return nil, err
	}
	text, err := one.RawManifest()
	if err != nil {
		return nil, err
	}
	return spinup.Sizes(text)
}

// boundedTransport is a transport that uses plain text only for this host, like the
// engine, and reads at most maxAnswer bytes.
type boundedTransport struct{ base http.RoundTripper }

func (c boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !loopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s would be queried in plain text", req.URL.Host)
	}
	res, err := c.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxAnswer), res.Body}
	return res, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
