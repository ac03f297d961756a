package protect

import "context"

// Job is a restart that another program does, such as the service manager. It takes the
// place of Options.Command.
type Job interface {
	// Name is the name of the restarted server, for the history.
	Name() string
	// Begin lets the restart begin. Run calls it when new connections are held and the
	// old server is drained.
	Begin() error
	// Follow calls done once, when the new server runs as far as the other program knows. A
	// listener before that does not count. It returns true when no
	// server will listen any more, and otherwise the cause when ctx ends.
	Follow(ctx context.Context, done func()) (down bool, err error)
}

// Program returns the name of the command or of the job.
func (o Options) Program() string {
	if o.Job != nil {
		return o.Job.Name()
	}
	return o.Command[0]
}

// followed is what happened to a job.
type followed struct {
	done, down bool
	err        error
}

// follow is finish for a job. It tells the keeper when the job has ended, and when no
// server will come. Errors: ErrKeeperGone, or the job's state is unknown.
func (o Options) follow(ctx context.Context, r *Report, k *Keeper, kept *kept, step func(string)) error {
	if err := o.Job.Begin(); err != nil {
		return err
	}
	step("start")
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan followed, 2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		down, err := o.Job.Follow(watching, func() { events <- followed{done: true} })
		events <- followed{down: down, err: err}
	}()
	defer func() { cancel(); <-ended }()
	for down := false; ; {
		select {
		case e := <-events:
			if e.done {
				step("command")
			}
			down = down || e.down
			// Without the job's state only the listeners would end the hold, or its
			// limit: it ends now, as it does when ctx ends.
			_ = k.Exited(!e.done) // if the keeper is gone, that is reported below
			if e.err != nil && ctx.Err() == nil {
				o.Log.Warn("protect: the hold ends early", "err", e.err)
			}
		case rel, ok := <-k.Released():
			if !ok {
				return ErrKeeperGone
			}
			r.Released = rel
			kept.relay()
			step("release")
			if rel.Reason == CommandKill {
				r.Released.Reason = JobGone
				if down {
					r.Released.Reason = StaysDown
				}
			}
			return nil
		}
	}
}
