// Package filenode joins the sessions of a node and the access to their files.
package filenode

import (
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/files"
	"holdfast/internal/sessions/session"
)

// Role is the command of this program that runs files.Main.
const Role = "files"

// New returns the files of a node's sessions.
func New(s *session.Manager, e engine.Engine, p *Program, r prometheus.Registerer) *files.Files {
	return files.New(func(key holdfast.SessionKey) (files.Place, error) {
		in, err := s.Inside(key)
		run := func(ctx context.Context, stdin io.Reader, stdout io.Writer) (int, error) {
			if err := p.Show(in.Dir); err != nil {
				return 0, err
			}
			return e.Exec(ctx, in.Container, engine.Exec{Command: []string{session.IdentityDir + "/" + name, Role}, User: "0:0", Dir: "/", Stdin: stdin, Stdout: stdout})
		}
		return files.Place{PID: in.PID, Left: in.Left, Same: in.Same, Exec: run}, err
	}, metric.Registry{Registerer: r})
}
