// Package filenode joins the sessions of a node and the access to their files.
package filenode

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/files"
	"holdfast/internal/sessions/session"
)

// New returns the files of a node's sessions.
func New(s *session.Manager, r prometheus.Registerer) *files.Files {
	return files.New(func(key holdfast.SessionKey) (files.Place, error) {
		in, err := s.Inside(key)
		return files.Place(in), err
	}, metric.Registry{Registerer: r})
}
