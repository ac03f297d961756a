// Package docker implements engine.Engine with the Docker Engine API, versions 1.40
// (Docker 19.03) and later. It does not export the API's types.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// DefaultHost is the default address of a Docker daemon (dockerd(8), --host).
const DefaultHost = "unix:///var/run/docker.sock"

// Config has the engine's address and credentials.
type Config struct {
	// Host is unix:///path or tcp://host:port. "" is DOCKER_HOST with
	// DOCKER_CERT_PATH and DOCKER_TLS_VERIFY or, without these, DefaultHost.
	Host string
	// CAFile, CertFile and KeyFile are PEM files for a tcp host with TLS: the trusted
	// authority, and the client's certificate and key. All three are set, or none.
	CAFile, CertFile, KeyFile string
}

// Engine implements engine.Engine. Its methods may be called from any
// goroutine.
type Engine struct {
	host    string
	options []client.Opt
	client  atomic.Pointer[client.Client]
	podman  atomic.Bool // by its last answer

	mu   sync.Mutex
	told string // the engine's highest API version, by its last answer
}

var _ engine.Engine = (*Engine)(nil)

// Open connects to the engine and agrees on a version of its API. An engine
// that does not answer is an error that wraps holdfast.ErrEngine.
func Open(ctx context.Context, c Config) (*Engine, error) {
	host, options, err := c.resolve()
	if err != nil {
		return nil, err
	}
	e := &Engine{host: host}
	e.options = append(options, client.WithUserAgent("holdfast"), client.WithHTTPResponseHook(e.noteAnswer))
	api, err := client.New(e.options...)
	if err != nil {
		return nil, fmt.Errorf("use the Docker engine at %s: %w", host, err)
	}
	e.client.Store(api)
	if _, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, errors.Join(e.fail(ctx, err, "connect to the Docker engine"), api.Close())
	}
	return e, nil
}

// resolve adds the settings of the environment and returns the host and the client's
// options.
func (c Config) resolve() (host string, options []client.Opt, err error) {
	host = cmp.Or(c.Host, os.Getenv(client.EnvOverrideHost), DefaultHost)
	scheme, _, _ := strings.Cut(host, "://")
	switch scheme {
	case "unix", "tcp", "http", "https":
	default:
		return "", nil, holdfast.WithHint(fmt.Errorf("the Docker engine's address %q is not supported", host),
			"use unix:///path/to/docker.sock or tcp://host:port")
	}
	tls := 0
	for _, file := range []string{c.CAFile, c.CertFile, c.KeyFile} {
		if file != "" {
			tls++
		}
	}
	switch {
	case tls == 3:
		options = append(options, client.WithHost(host), client.WithTLSClientConfig(c.CAFile, c.CertFile, c.KeyFile))
	case tls != 0:
		return "", nil, fmt.Errorf("TLS to the Docker engine at %s needs a CA, a certificate and a key", host)
	case c.Host == "":
		// This option replaces the whole transport, so it comes before the host.
		options = append(options, client.WithTLSClientConfigFromEnv(), client.WithHost(host))
	default:
		options = append(options, client.WithHost(host))
	}
	return host, options, nil
}

// api returns the client for the engine that answered last.
func (e *Engine) api() *client.Client { return e.client.Load() }

// agree makes a client for another version of the API when an answer has another version than
// the last one: the engine was upgraded or downgraded. A client agrees on a version only once,
// and newer engines refuse old versions. version is the highest one that the engine supports
// ("Api-Version" of each answer; moby, daemon/server/middleware/version.go).
func (e *Engine) agree(version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if version == "" || version == e.told {
		return
	}
	if e.told != "" {
		use := version
		if versions.GreaterThan(use, client.MaxAPIVersion) {
			use = client.MaxAPIVersion
		}
		api, err := client.New(append(slices.Clone(e.options), client.WithAPIVersion(use))...)
		if err != nil {
			return // the next answer tries again
		}
		_ = e.client.Swap(api).Close() // calls in progress go on
	}
	e.told = version
}

// Run waits for ctx: a Docker daemon needs nothing from its clients.
func (e *Engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close frees the connections.
func (e *Engine) Close() error { return e.api().Close() }

// Ping asks for the running containers with a label that none has, which the engine looks up in
// its store. /_ping would show less: the engine's HTTP server answers it alone.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.api().ContainerList(ctx, client.ContainerListOptions{Filters: labelFilters(map[string]string{"holdfast.ping": ""})})
	return e.fail(ctx, err, "ask whether the engine answers")
}

// Info describes the engine, with one call.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	res, err := e.api().Info(ctx, client.InfoOptions{})
	if err != nil {
		return engine.Info{}, e.fail(ctx, err, "read the engine's version")
	}
	info := engine.Info{
		Name:          engine.Docker,
		Version:       res.Info.ServerVersion,
		APIVersion:    e.api().ClientVersion(),
		StorageDriver: res.Info.Driver,
		ImageStore:    imageStore(res.Info.DriverStatus),
		Kernel:        res.Info.KernelVersion,
		// Engines before 20.10 do not report it, and support version 1 only.
		CgroupVersion: cmp.Or(res.Info.CgroupVersion, "1"),
		DataRoot:      res.Info.DockerRootDir,
		Rootless:      slices.Contains(res.Info.SecurityOptions, "name=rootless"),
		Remapped:      slices.Contains(res.Info.SecurityOptions, "name=userns"),
	}
	if path, ok := strings.CutPrefix(e.host, "unix://"); ok {
		info.Socket = path
	}
	if e.podman.Load() {
		info.Name = engine.Podman
	}
	return info, nil
}

// ImageID resolves a reference to the id of an image on this host.
func (e *Engine) ImageID(ctx context.Context, ref string) (string, error) {
	res, err := e.api().ImageInspect(ctx, ref)
	return res.ID, e.fail(ctx, err, "find image %s", ref)
}

// ImageDigest returns the digest by which the repository of name serves the image, or "".
func (e *Engine) ImageDigest(ctx context.Context, name string) (string, error) {
	res, err := e.api().ImageInspect(ctx, name)
	if err != nil {
		return "", e.fail(ctx, err, "find image %s", name)
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil { // an id
		return "", nil
	}
	for _, text := range res.RepoDigests {
		if d, err := reference.ParseNormalizedNamed(text); err == nil && d.Name() == named.Name() {
			if digested, ok := d.(reference.Digested); ok {
				return digested.Digest().String(), nil
			}
		}
	}
	return "", nil
}

// imageStore detects the containerd image store by the daemon's driver status (moby,
// daemon/containerd/service.go LayerStoreStatus).
func imageStore(status [][2]string) string {
	for _, s := range status {
		if s[0] == "driver-type" && strings.HasPrefix(s[1], "io.containerd.snapshotter") {
			return engine.ContainerdStore
		}
	}
	return engine.GraphDriver
}
