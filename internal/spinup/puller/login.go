package puller

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"holdfast"
	"holdfast/internal/engine"
)

// helperLimit bounds how long a credential helper is waited for. Helpers of
// clouds ask a service of theirs.
const helperLimit = 30 * time.Second

// DockerLogins are the logins that `docker login` left: in config.json of
// DOCKER_CONFIG or ~/.docker, there or with the credential helpers that it names
// (https://docs.docker.com/reference/cli/docker/login/#credential-stores). The
// helpers are other programs; they are found on PATH.
type DockerLogins struct{}

// Login returns the login for an image's registry, the zero value where there is
// none. The error says why the file or a helper cannot be used, with a hint.
func (DockerLogins) Login(ctx context.Context, image string) (engine.Login, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return engine.Login{}, nil // no image either: the pull says so
	}
	registry := ref.Context().Registry
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	type answer struct {
		config *authn.AuthConfig
		err    error
	}
	// A helper that hangs cannot be called back.
	answers := make(chan answer, 1)
	go func() {
		a, err := authn.Resolve(ctx, authn.DefaultKeychain, registry)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		config, err := authn.Authorization(ctx, a)
		answers <- answer{config, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return engine.Login{}, holdfast.WithHint(fmt.Errorf("read the login for %s: %w", registry, a.err),
				"look at config.json in $DOCKER_CONFIG or ~/.docker, and at the credential helper that it names")
		}
		return loginOf(registry, a.config), nil
	case <-ctx.Done():
		return engine.Login{}, fmt.Errorf("read the login for %s: the credential helper does not answer: %w", registry, ctx.Err())
	}
}

func loginOf(registry name.Registry, c *authn.AuthConfig) engine.Login {
	if c == nil || *c == (authn.AuthConfig{}) {
		return engine.Login{}
	}
	server := registry.RegistryStr()
	if server == name.DefaultRegistry {
		server = authn.DefaultAuthKey
	}
	return engine.Login{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken, Server: server}
}
