package puller

import (
	"context"

	"holdfast/internal/hosts/spinup"
)

// ForJobs pulls the images of jobs.
type ForJobs struct{ *Puller }

// Pull pulls an image and returns the figures of the pull, also if there is an error. With
// missing it pulls only an image that is not on this host. platform may be "".
func (p ForJobs) Pull(ctx context.Context, image, platform string, missing bool) (spinup.Pull, error) {
	r, err := p.Puller.Pull(ctx, Request{Image: image, Platform: platform, Missing: missing, Kind: spinup.ForRun}, nil)
	if r.Pull == nil {
		return spinup.Pull{Image: image, Begun: r.Begun}, err
	}
	return *r.Pull, err
}
