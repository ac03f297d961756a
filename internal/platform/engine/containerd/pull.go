package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	hostconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// downloads is the number of layers that are fetched at once, as with Docker.
const downloads = 3

// defaultCerts has the hosts' settings for registries: mirrors, certificates, plain HTTP
// (containerd, docs/hosts.md).
const defaultCerts = "/etc/containerd/certs.d"

// Pull fetches an image and yields its progress, up to the first error. It uses the
// settings in Config.Certs for registries, and also plain HTTP for those
// on loopback.
func (e *Engine) Pull(ctx context.Context, ref string, o engine.PullOptions) iter.Seq2[engine.PullEvent, error] {
	return func(yield func(engine.PullEvent, error) bool) {
		ctx, cancel := context.WithCancelCause(e.in(ctx))
		defer cancel(nil)
		p := newProgress(ctx)
		done := make(chan error, 1)
		go func() { done <- e.pull(ctx, cancel, ref, o, p) }()
		// The goroutine ends before the sequence does.
		ended := false
		defer func() {
			cancel(nil)
			if !ended {
				<-done
			}
		}()
		for {
			select {
			case ev := <-p.events:
				if !yield(ev, nil) {
					return
				}
			case err := <-done:
				ended = true
				if err != nil {
					yield(engine.PullEvent{}, err)
				}
				return
			}
		}
	}
}

// pull fetches and extracts an image and gives it its name.
func (e *Engine) pull(ctx context.Context, cancel context.CancelCauseFunc, ref string, o engine.PullOptions, p *progress) error {
	failed := func(err error) error {
		if cause := context.Cause(ctx); errors.Is(cause, holdfast.ErrEngine) {
			return holdfast.WithHint(fmt.Errorf("pull image %s: %w", ref, cause), hintDown(cause))
		}
		return e.fail(ctx, err, "pull image %s", ref)
	}
	platform, err := engine.ParsePlatform(o.Platform)
	if err != nil {
		return failed(err)
	}
	name, err := fullName(ref)
	if err != nil {
		return failed(err)
	}
	if _, err := e.api.Version(ctx); err != nil {
		return failed(err) // before any request
	}
	watch := e.watchDaemon(ctx, cancel)
	defer watch()
	before, _ := e.api.ImageService().Get(ctx, name) // the zero value if there is none
	p.tell(engine.PullEvent{Status: "Pulling from " + name})
	options := []client.RemoteOpt{
		client.WithPullUnpack, client.WithPullSnapshotter(e.cfg.Snapshotter), client.WithMaxConcurrentDownloads(downloads),
		client.WithResolver(watchedResolver{e.resolver(ctx, o), p}),
		client.WithImageHandlerWrapper(p.handler),
	}
	if platform != nil {
		options = append(options, client.WithPlatform(o.Platform))
	}
	img, err := e.api.Pull(context.WithValue(ctx, progressKey{}, p), name, options...)
	if err != nil {
		return failed(err)
	}
	p.finish()
	p.tell(engine.PullEvent{Status: "Digest: " + img.Target().Digest.String()})
	status := "Status: Downloaded newer image for "
	if before.Target.Digest == img.Target().Digest {
		status = "Status: Image is up to date for "
	}
	p.tell(engine.PullEvent{Status: status + name})
	return nil
}

// watchDaemon cancels a pull when the daemon stops: a pull that waits for a registry
// would not notice. The function that it returns ends the watch.
func (e *Engine) watchDaemon(ctx context.Context, cancel context.CancelCauseFunc) func() {
	ctx, stop := context.WithCancel(ctx)
	// Nothing is published under that topic; only the end of the connection matters.
	_, errs := e.api.EventService().Subscribe(ctx, `topic=="/holdfast/none"`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-errs
		if ctx.Err() == nil {
			cancel(fmt.Errorf("%w at %s: it stopped", holdfast.ErrEngine, e.cfg.Host))
		}
	}()
	return func() { stop(); <-done }
}

// resolver returns a resolver for registries with a login, and for their mirrors with their own.
func (e *Engine) resolver(ctx context.Context, o engine.PullOptions) remotes.Resolver {
	hosts := hostconfig.HostOptions{HostDir: hostconfig.HostDirFromRoot(cmp.Or(e.cfg.Certs, defaultCerts))}
	hosts.Credentials = func(host string) (user, secret string, err error) {
		l := o.Login
		if l.Server != "" && !sameRegistry(host, l.Server) || l == (engine.Login{}) {
			if o.LoginAt == nil {
				return "", "", nil
			}
			if l, err = o.LoginAt(ctx, host); err != nil {
				return "", "", err
			}
		}
		if l.IdentityToken != "" {
			return "", l.IdentityToken, nil // without a user name it is a refresh token
		}
		return l.Username, l.Password, nil
	}
	options := docker.ResolverOptions{Hosts: hostconfig.ConfigureHosts(ctx, hosts)}
	if token := o.Login.RegistryToken; token != "" {
		options.Headers = map[string][]string{"Authorization": {"Bearer " + token}}
	}
	return docker.NewResolver(options)
}

// sameRegistry reports whether the login is for host. Docker's own registry has
// several names.
func sameRegistry(host, server string) bool {
	hub := map[string]bool{"docker.io": true, "registry-1.docker.io": true, "index.docker.io": true, "https://index.docker.io/v1/": true}
	return host == server || hub[host] && hub[server]
}
