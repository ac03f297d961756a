package mariadb

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"holdfast"
	"holdfast/internal/control/api/client"
)

// load writes to one database continuously, and follows it after a replacement.
type load struct {
	t      *testing.T
	agent  *client.Client
	key    holdfast.SessionKey
	acked  atomic.Int64
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	tried  map[row]bool // the value says whether the commit was acknowledged
	errors map[string]int
}

// row is written once. A writer does not repeat it, because the result of a commit without an
// answer is unknown.
type row struct{ writer, n int }

// write starts writers, until check or the test's end.
func write(t *testing.T, agent *client.Client, key holdfast.SessionKey, writers int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, agent: agent, key: key, cancel: cancel, tried: map[row]bool{}, errors: map[string]int{}}
	l.query(`CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, writer INT NOT NULL, n INT NOT NULL) ENGINE=InnoDB`)
	for i := range writers {
		l.done.Go(func() { l.writer(ctx, i) })
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// writer connects, writes until an error, and reconnects.
func (l *load) writer(ctx context.Context, id int) {
	for n := 0; ctx.Err() == nil; {
		db, err := l.open(ctx)
		if err == nil {
			n, err = l.writeUntilError(ctx, db, id, n)
			db.Close()
		}
		l.note(err)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *load) writeUntilError(ctx context.Context, db *sql.DB, id, n int) (int, error) {
	for ; ctx.Err() == nil; n++ {
		l.set(row{id, n}, false)
		// Without ctx, because a write in progress is completed.
		if _, err := db.Exec(`INSERT INTO t (writer, n) VALUES (?, ?)`, id, n); err != nil {
			return n + 1, err
		}
		l.set(row{id, n}, true)
		l.acked.Add(1)
		time.Sleep(2 * time.Millisecond) // a write after a write would take a CPU from the servers
	}
	return n, nil
}

func (l *load) set(r row, acked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried[r] = acked
}

func (l *load) note(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors[err.Error()]++
}

// open returns a pool of one connection to the database's address in the session's record.
func (l *load) open(ctx context.Context) (*sql.DB, error) {
	s, err := l.agent.Session(ctx, l.key)
	if err != nil {
		return nil, err
	}
	if s.State != holdfast.Ready {
		return nil, fmt.Errorf("the session is %s", s.State)
	}
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = "app", "change-me", "app"
	c.Net, c.Addr = "tcp", s.Address
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 5*time.Second, 20*time.Second, 20*time.Second
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{} // the errors are returned, too
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// query runs one statement that must succeed.
func (l *load) query(statement string) {
	l.t.Helper()
	db, err := l.open(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		l.t.Fatal(err)
	}
}

// await returns after more acknowledged writes.
func (l *load) await(more int64) {
	l.t.Helper()
	for from, end := l.acked.Load(), time.Now().Add(2*time.Minute); l.acked.Load() < from+more; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("%s: %d writes were acknowledged, not %d more, in two minutes: %v", l.key, l.acked.Load(), more, l.errors)
		}
	}
}

// begin writes a row in a transaction that stays open until the database ends.
func (l *load) begin(r row) {
	l.t.Helper()
	db, err := l.open(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { db.Close() })
	tx, err := db.Begin()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = tx.Rollback() }) // an error: its database has ended
	if _, err := tx.Exec(`INSERT INTO t (writer, n) VALUES (?, ?)`, r.writer, r.n); err != nil {
		l.t.Fatal(err)
	}
}

// rows returns the number of occurrences of each row in the table.
func (l *load) rows() map[row]int {
	l.t.Helper()
	db, err := l.open(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer db.Close()
	found, err := db.Query(`SELECT writer, n FROM t`)
	if err != nil {
		l.t.Fatal(err)
	}
	defer found.Close()
	out := map[row]int{}
	for found.Next() {
		var r row
		if err := found.Scan(&r.writer, &r.n); err != nil {
			l.t.Fatal(err)
		}
		out[r]++
	}
	if err := found.Err(); err != nil {
		l.t.Fatal(err)
	}
	return out
}

// check stops the writers and compares the table with the acknowledged writes.
func (l *load) check() {
	l.t.Helper()
	l.stop()
	rows := l.rows()
	var lost, unanswered int
	for r, acked := range l.tried {
		switch {
		case acked && rows[r] != 1:
			lost++
			l.t.Errorf("%s: row %+v was acknowledged, and is there %d times", l.key, r, rows[r])
		case !acked:
			unanswered++
		}
		if lost > 10 {
			break
		}
	}
	for r, times := range rows {
		if _, tried := l.tried[r]; !tried || times != 1 {
			l.t.Errorf("%s: row %+v, which was written once or not at all (%v), is there %d times", l.key, r, tried, times)
		}
	}
	l.t.Logf("%s: %d rows acknowledged, %d without an answer, %d in the table; errors that clients saw: %v",
		l.key, l.acked.Load(), unanswered, len(rows), l.errors)
}
