package puller

import (
	"context"
	"fmt"
	"os"

	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// DockerLogins reads the logins that `docker login` has saved: in config.json of
// DOCKER_CONFIG or ~/.docker, or in the credential helpers that the file names
// (https://docs.docker.com/reference/cli/docker/login/#credential-stores). The
// helpers are programs on PATH.
type DockerLogins struct{}

// loginHint is the hint of a login that cannot be read.
const loginHint = "look at config.json in $DOCKER_CONFIG or ~/.docker, and at the credential helper that it names"

// Login returns the login for an image's registry, the zero value if there is
// none. If the file or a helper cannot be used, the error gives the reason, with
// a hint. A helper that hangs cannot be cancelled: then Login hangs, too.
func (DockerLogins) Login(_ context.Context, image string) (engine.Login, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return engine.Login{}, nil // the name is invalid: the pull reports it
	}
	registry := ref.Context().RegistryStr()
	login, err := loginAt(registry)
	if err != nil {
		return engine.Login{}, holdfast.WithHint(fmt.Errorf("read the login for %s: %w", registry, err), loginHint)
	}
	return login, nil
}

// loginAt returns the login for one registry. authn.DefaultKeychain would do the
// same, but serializes all calls of the process for as long as a helper takes.
func loginAt(registry string) (engine.Login, error) {
	file, err := config.Load(os.Getenv("DOCKER_CONFIG"))
	if err != nil {
		return engine.Login{}, err
	}
	server := registry
	if server == name.DefaultRegistry {
		server = authn.DefaultAuthKey
	}
	c, err := file.GetAuthConfig(server)
	if err != nil {
		return engine.Login{}, err
	}
	l := engine.Login{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}
	if l != (engine.Login{}) {
		l.Server = server
	}
	return l, nil
}
