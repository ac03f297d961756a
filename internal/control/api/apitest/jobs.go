package apitest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/job"
)

// jobs implements api.Jobs. All runs are placed on this node. A run prints its index, and
// ends with the exit code 0. A job of the image "wait" waits until it is stopped.
type jobs struct{ *Backend }

func (b jobs) PlaceJob(_ context.Context, q api.PlaceJobRequest) ([]holdfast.NodeID, error) {
	return slices.Repeat([]holdfast.NodeID{b.node()}, q.Runs), b.failure()
}

func (b jobs) EstimatePull(_ context.Context, q api.JobImages) (api.PullEstimate, error) {
	return api.PullEstimate{Pull: holdfast.Millis(10 * time.Second), Missing: q.Images[1:]}, b.failure()
}

func (b jobs) RunJob(ctx context.Context, q api.JobRequest, s api.JobStream) error {
	if err := b.failure(); err != nil {
		return err
	}
	for _, run := range q.Runs {
		stdout, stderr := s.Output(run)
		fmt.Fprintf(stdout, "out %d\n", run)
		fmt.Fprintf(stderr, "err %d\n", run)
		s.Event(api.JobEvent{Progress: &job.Event{Run: run, Name: "primary", Line: "time to start containers: 0.100s"}})
	}
	if q.Job.Images[0].Image == "wait" {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, run := range q.Runs {
		s.Event(api.JobEvent{Ended: &job.Run{Index: run, Steps: []job.StepResult{}}})
	}
	return nil
}
