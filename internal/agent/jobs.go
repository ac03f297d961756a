package agent

import (
	"context"
	"time"

	"holdfast/internal/hosts/job"
	"holdfast/internal/platform/tasks"
)

const (
	// sweepEvery is how often the agent looks for what killed jobs left. Most
	// of it is removed by the jobs' own watchers; where nobody can be asked
	// whether a job's owner lives, an hour has to pass first.
	sweepEvery = time.Hour
	sweepLimit = 2 * time.Minute
)

// sweepJobs removes what jobs (`holdfast run`) left whose owners are dead.
func (a *Agent) sweepJobs(p *tasks.Stack) error {
	engine, ok := a.engine.(job.Cleaner)
	if !ok {
		return nil // an engine without networks has had no jobs
	}
	self, err := job.Self()
	if err != nil {
		return err
	}
	p.Start("what jobs left", func(ctx context.Context) error {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			a.sweepOnce(ctx, engine, self)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return nil
}

func (a *Agent) sweepOnce(ctx context.Context, engine job.Cleaner, self job.Owner) {
	limited, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	n, err := job.Sweep(limited, engine, self, a.log)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("removing what killed jobs left", "err", err)
	}
	if n > 0 {
		a.log.Info("removed what killed jobs left", "jobs", n)
	}
}
