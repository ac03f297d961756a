package puller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// loginLimit bounds the wait for a login. Credential helpers of clouds query a
// service.
const loginLimit = 30 * time.Second

// logins queries the logins of registries, one query at a time for each
// (singleflight), and gives the answer to all waiting callers. A query that hangs
// delays the first pulls from its registry by loginLimit, later ones not at all,
// and other registries not at all.
type logins struct {
	from Logins

	mu   sync.Mutex
	open map[string]*loginQuestion // by registry
}

// loginQuestion is an unanswered query.
type loginQuestion struct {
	registry string
	until    time.Time // the wait ends here
	done     chan struct{}
	login    engine.Login // valid after done, like err
	err      error
}

func newLogins(from Logins) *logins {
	return &logins{from: from, open: map[string]*loginQuestion{}}
}

// get returns the login for an image's registry, like Logins, after at most
// loginLimit.
func (l *logins) get(ctx context.Context, image string) (engine.Login, error) {
	if l.from == nil {
		return engine.Login{}, nil
	}
	q := l.question(ctx, image)
	patience := time.NewTimer(time.Until(q.until))
	defer patience.Stop()
	select {
	case <-q.done:
		return q.login, q.err
	case <-patience.C:
		// The caller's ctx is not done: a pull that fails without the login was
		// not cancelled.
		return engine.Login{}, holdfast.WithHint(
			fmt.Errorf("read the login for %s: the credential helper has not answered for %v", q.registry, loginLimit), loginHint)
	case <-ctx.Done():
		return engine.Login{}, fmt.Errorf("read the login for %s: the credential helper does not answer: %w", q.registry, ctx.Err())
	}
}

// at returns the login for a host that an engine asks instead of an image's registry, such as
// a mirror.
func (l *logins) at(ctx context.Context, host string) (engine.Login, error) {
	image := host + "/mirror"
	if ref, err := name.ParseReference(image); err != nil || ref.Context().RegistryStr() != host {
		return engine.Login{}, nil // the name would be that of an image of another registry
	}
	return l.get(ctx, image)
}

// question joins the open query for an image's registry, or starts one.
func (l *logins) question(ctx context.Context, image string) *loginQuestion {
	registry := image
	if ref, err := name.ParseReference(image); err == nil {
		registry = ref.Context().RegistryStr()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.open[registry]; q != nil {
		return q
	}
	q := &loginQuestion{registry: registry, until: time.Now().Add(loginLimit), done: make(chan struct{})}
	l.open[registry] = q
	// The first caller may return while others still wait.
	go l.ask(context.WithoutCancel(ctx), q, image)
	return q
}

func (l *logins) ask(ctx context.Context, q *loginQuestion, image string) {
	ctx, cancel := context.WithDeadline(ctx, q.until)
	defer cancel()
	q.login, q.err = l.from.Login(ctx, image)
	l.mu.Lock()
	delete(l.open, q.registry)
	l.mu.Unlock()
	close(q.done)
}
