package puller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/coalesce"
	"holdfast/internal/platform/engine"
)

// Engine is the part of a container engine that a Puller uses.
type Engine interface {
	Info(ctx context.Context) (engine.Info, error)
	ImageDigest(ctx context.Context, name string) (string, error)
	Pull(ctx context.Context, ref string, o engine.PullOptions) iter.Seq2[engine.PullEvent, error]
}

// Logins reads the logins of registries.
type Logins interface {
	// Login returns the login for the registry of an image, the zero value if
	// there is none. It may hang, also when ctx is done. The puller calls it in
	// a separate goroutine, with one call at a time for each registry.
	Login(ctx context.Context, image string) (engine.Login, error)
}

// Manifests reads the layers of images.
type Manifests interface {
	// Sizes returns the compressed sizes of an image's layers in bytes, by
	// digest. A platform of "" is this host's.
	Sizes(ctx context.Context, image, platform string, l engine.Login) (map[string]int64, error)
}

// Config is the configuration of a Puller.
type Config struct {
	Engine    Engine
	Logins    Logins    // nil: no logins
	Manifests Manifests // nil: layers have the sizes that the engine reports
	// Host and Unpigz are for the cohort: this host's name, and whether the
	// engine finds unpigz (spinup.HasUnpigz).
	Host   string
	Unpigz bool
	Log    *slog.Logger // nil: discarded; level debug has failed queries
}

// Puller pulls images. Its methods may be called from any goroutine.
type Puller struct {
	c      Config
	info   *coalesce.Reader[engine.Info]
	known  atomic.Pointer[engine.Info] // nil until the engine has answered
	logins *logins
	chains chains
}

// New returns a puller. It makes no query.
func New(c Config) *Puller {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Puller{c: c, info: coalesce.New(c.Engine.Info), logins: newLogins(c.Logins), chains: newChains()}
}

// Request is one image to be pulled.
type Request struct {
	Image    string
	Platform string      // os/arch or os/arch/variant; "" is the engine's own
	Kind     spinup.Kind // of the record; "" is spinup.ForPull
	Job      string      // of the record
	// Missing skips an image that is on this host already: the registry is not
	// queried. It has no effect if a Platform is named, because the engine does
	// not report the platform of the local image.
	Missing bool
}

// Result is the result of one pull.
type Result struct {
	Record spinup.Record
	Err    error
	// Of is the index of the request for which the image was pulled: a smaller
	// one for each repeated request. Their records are the same and must be saved
	// once.
	Of int
}

// progressEvery is the interval of progress reports of Pull.
const progressEvery = 100 * time.Millisecond

// Pull pulls one image. The record has a Pull also if there is an error. Without an
// error the image is on this host. A caller that creates a container of the image passes
// the record's Pull to a spinup.Timer, and saves the Timer's record instead.
//
// progress, if not nil, receives the current figures about ten times a second and once
// at the end, one call at a time. It must not block.
//
// The error is that of the engine with the current layer, that of ctx, or
// spinup.ErrEndedEarly. It has a hint if its cause is known (spinup.Cause.Explain).
func (p *Puller) Pull(ctx context.Context, q Request, progress func(spinup.Pull)) (spinup.Record, error) {
	timer := spinup.NewTimer(cmp.Or(q.Kind, spinup.ForPull), q.Image, spinup.Cohort{})
	timer.Job(q.Job)
	info := p.ask(ctx)
	pull, err := p.pull(ctx, q, info, progress)
	if progress != nil {
		progress(pull)
	}
	timer.Pulled(pull)
	record := timer.End(err)
	record.Cohort = p.cohort(info.wait())
	return record, err
}

// Cohort returns the cohort of this host's spin-ups. The engine is queried until
// it has answered once.
func (p *Puller) Cohort(ctx context.Context) (spinup.Cohort, error) {
	info, err := p.engineInfo(ctx)
	return p.cohort(info), err
}

// cohort leaves out what the engine did not report.
func (p *Puller) cohort(info engine.Info) spinup.Cohort {
	if info == (engine.Info{}) {
		return spinup.Cohort{Host: p.c.Host, Unpigz: p.c.Unpigz}
	}
	return spinup.NewCohort(p.c.Host, info, p.c.Unpigz)
}

// pull does the pull itself.
func (p *Puller) pull(ctx context.Context, q Request, info *infoQuery, progress func(spinup.Pull)) (spinup.Pull, error) {
	begun := time.Now()
	if q.Missing && q.Platform == "" {
		if digest, err := p.c.Engine.ImageDigest(ctx, q.Image); err == nil {
			return spinup.Pull{Image: q.Image, Digest: digest, Begun: begun, Done: true, Cached: true}, nil
		}
		// The pull reports whatever is wrong.
	}
	login, noLogin := p.login(ctx, q.Image)
	s := p.newStream(q, login, begun, info)
	defer s.close()
	stop := s.tell(progress)
	err := s.read(p.c.Engine.Pull(ctx, q.Image, engine.PullOptions{Platform: q.Platform, Login: login, LoginAt: p.logins.at}))
	stop()
	pull, err := s.finish(err)
	return pull, describe(q, pull, err, noLogin)
}

// login returns the image's login, or the reason why there is none.
func (p *Puller) login(ctx context.Context, image string) (engine.Login, error) {
	login, err := p.logins.get(ctx, image)
	if err != nil {
		// Most images need none.
		p.c.Log.Debug("no login for an image's registry", "image", image, "error", err)
		return engine.Login{}, err
	}
	return login, nil
}

// describe adds context to a pull's error.
func describe(q Request, pull spinup.Pull, err, noLogin error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, spinup.ErrEndedEarly) {
		err = fmt.Errorf("pull image %s: %w", q.Image, err)
	}
	if l, ok := pull.Stuck(); ok && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w (at layer %s, %s)", err, l.ID, l.State)
	}
	if cause := spinup.CauseOf(err); noLogin != nil && (cause == spinup.Denied || cause == spinup.NoImage) {
		err = fmt.Errorf("%w; without a login: %w", err, noLogin)
	}
	return spinup.CauseOf(err).Explain(err)
}
