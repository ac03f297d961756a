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

// loginLimit bounds how long a login is waited for. Credential helpers of clouds
// ask a service of theirs.
const loginLimit = 30 * time.Second

// logins asks for the logins of registries, for each one question at a time,
// whose answer goes to all who wait for it. One that hangs costs the first pulls
// from its registry loginLimit, those after them nothing, and other registries'
// nothing at all.
type logins struct {
	from Logins

	mu   sync.Mutex
	open map[string]*loginQuestion // by registry
}

// loginQuestion is one that is not answered.
type loginQuestion struct {
	registry string
	until    time.Time // nobody waits longer
	done     chan struct{}
	login    engine.Login // valid after done, as err is
	err      error
}

func newLogins(from Logins) *logins {
	return &logins{from: from, open: map[string]*loginQuestion{}}
}

// get returns the login for an image's registry, as Logins does, after
// loginLimit at most.
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
		// It is not ctx that has ended: a pull that fails without the login
		// was not called off.
		return engine.Login{}, holdfast.WithHint(
			fmt.Errorf("read the login for %s: the credential helper has not answered for %v", q.registry, loginLimit), loginHint)
	case <-ctx.Done():
		return engine.Login{}, fmt.Errorf("read the login for %s: the credential helper does not answer: %w", q.registry, ctx.Err())
	}
}

// question is the one that is open for an image's registry, or a new one.
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
	// Who asked first may go while others wait.
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
