package replace

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// connect returns a pool of one connection, for the server whose address dial returns at
// each connect. A kept connection is used again; see lifetime.
func connect(address func(context.Context) (string, error), kept bool) (*sql.DB, error) {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = "app", "change-me", "app"
	c.Net, c.Addr = "tcp", "database"
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 10*time.Second, 20*time.Second, 20*time.Second
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{} // the errors are returned, too
	c.DialFunc = dialer(address)
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(0)
	if kept {
		db.SetMaxIdleConns(1)
		db.SetConnMaxLifetime(lifetime)
	}
	return db, nil
}

// lifetime is how long a client uses a connection. It is under the group's drain_timeout,
// so that no connection is cut off.
const lifetime = 3 * time.Second

// asked is one query, from the first try until it succeeded.
type asked struct {
	at     time.Time
	took   time.Duration
	errors int
}

// traffic is the clients of one way to replace.
type traffic struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	kinds  map[string][]asked
	errors map[string]int // by text
}

// Kinds of clients.
const (
	fresh = "readers that connect for each query"
	kept  = "readers that keep their connection for 3 s"
	probe = "probe query each second"
)

const (
	retryPause = 20 * time.Millisecond // of a client after an error
	readPause  = 10 * time.Millisecond
	probePause = time.Second
)

const (
	// read is a query by primary key.
	read = "SELECT kind FROM t WHERE id >= ? ORDER BY id LIMIT 1"
	// probeRead sorts in a temporary table, which is slow on a sick host.
	probeRead = "SELECT kind, COUNT(*) AS n, MAX(pad) FROM (SELECT kind, pad FROM t WHERE id >= ? ORDER BY id LIMIT 2000) AS some GROUP BY kind ORDER BY n LIMIT 1"
)

// read starts readers and the probe, until stop.
func (x *experiment) read(address func(context.Context) (string, error)) (*traffic, error) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &traffic{cancel: cancel, kinds: map[string][]asked{}, errors: map[string]int{}}
	for i := range 2*x.o.Readers + 1 {
		kind, pause := fresh, readPause
		switch {
		case i == 2*x.o.Readers:
			kind, pause = probe, probePause
		case i%2 == 1:
			kind = kept
		}
		db, err := connect(address, kind == kept)
		if err != nil {
			t.stop()
			return nil, err
		}
		t.done.Go(func() {
			defer db.Close()
			t.loop(ctx, kind, pause, db, (i*7919+1)%(x.o.Size<<10))
		})
	}
	return t, nil
}

func (t *traffic) stop() {
	t.cancel()
	t.done.Wait()
}

// loop asks again and again. A query that has begun is completed.
func (t *traffic) loop(ctx context.Context, kind string, pause time.Duration, db *sql.DB, id int) {
	next := time.Now()
	for ctx.Err() == nil {
		a := asked{at: time.Now()}
		for {
			err := ask(kind, db, id)
			if err == nil {
				break
			}
			a.errors++
			t.mu.Lock()
			t.errors[err.Error()]++
			t.mu.Unlock()
			if ctx.Err() != nil {
				break // it never succeeded
			}
			time.Sleep(retryPause)
		}
		a.took = time.Since(a.at)
		t.mu.Lock()
		t.kinds[kind] = append(t.kinds[kind], a)
		t.mu.Unlock()
		next = next.Add(pause)
		if now := time.Now(); next.Before(now) {
			next = now
		}
		_ = tasks.Sleep(ctx, time.Until(next))
	}
}

func ask(kind string, db *sql.DB, id int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var number, n int
	var pad string
	if kind == probe {
		return db.QueryRowContext(ctx, probeRead, id).Scan(&number, &n, &pad)
	}
	return db.QueryRowContext(ctx, read, id).Scan(&number)
}

// at returns the address of a session in its record, as clients without a TCP address find it.
func (x *experiment) at(key holdfast.SessionKey) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		s, err := x.api.Session(ctx, key)
		if err == nil && s.State != holdfast.Ready {
			err = fmt.Errorf("the session is %s", s.State)
		}
		return s.Address, err
	}
}

// group is the TCP address of the group.
func (x *experiment) group(context.Context) (string, error) { return x.tcp, nil }

// write writes a row to the primary every 50 ms, until ctx is done.
func (x *experiment) write(ctx context.Context) error {
	db, err := connect(x.at("primary"), true)
	if err != nil {
		return err
	}
	defer db.Close()
	for ctx.Err() == nil {
		if _, err := db.Exec("INSERT INTO w (at) VALUES (?)", time.Now().UnixNano()); err != nil {
			return fmt.Errorf("writing to the primary: %w", err)
		}
		_ = tasks.Sleep(ctx, 50*time.Millisecond)
	}
	return nil
}

// sum describes the content of a database, after it has all writes of the primary.
func (x *experiment) sum(ctx context.Context, key holdfast.SessionKey) (text string, err error) {
	db, err := connect(x.at(key), true)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var rows, written, last int64
	err = db.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM t), (SELECT COUNT(*) FROM w), (SELECT MAX(at) FROM w)").Scan(&rows, &written, &last)
	return fmt.Sprintf("%d rows, %d written, the last at %d", rows, written, last), err
}
