package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/features"

	"holdfast"
	"holdfast/internal/platform/store"
)

// ServerConfig configures an embedded server.
type ServerConfig struct {
	// DataDir is the server's own directory. Open makes it if it is missing, with
	// mode 0700.
	DataDir string
	// Timeout bounds each call; 0 is 2 s.
	Timeout time.Duration
	// Log gets etcd's warnings and errors; nil is none.
	Log *slog.Logger
}

// Server is an etcd of one member inside this process. It has no listener: its store
// calls it directly.
type Server struct {
	etcd  *etcdserver.EtcdServer
	lock  *os.File
	store *Store
	dead  context.Context // done when the server has failed, with the failure as its cause
	fail  context.CancelCauseFunc
	dir   string
}

// How long Close waits. A failed server has goroutines that never end, so Close waits
// less for it.
const (
	closeTimeout       = 10 * time.Second
	closeTimeoutFailed = time.Second
)

// Open starts a server and returns when it accepts writes. It fails with ErrInUse if
// another server has the directory, with ErrNoSpace if its filesystem is full, and
// with a hint if its files are broken or not readable.
//
// After an error from broken files etcd may still have some of them open. A new Open
// needs a new process.
func Open(ctx context.Context, c ServerConfig) (*Server, error) {
	log := cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	lock, err := prepareDir(c.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open the embedded etcd: %w", err)
	}
	s := &Server{lock: lock, dir: c.DataDir}
	s.dead, s.fail = context.WithCancelCause(context.Background())
	if err := s.start(ctx, log); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open the embedded etcd in %s: %w", c.DataDir, err)
	}
	s.store = &Store{
		client:  v3client.New(s.etcd),
		log:     log,
		timeout: cmp.Or(c.Timeout, defaultTimeout),
		where:   "the embedded etcd does not answer: see the agent's log, and whether the disk under " + c.DataDir + " is slow or broken",
		quota:   "start the agent again: it compacts the embedded etcd's database and goes on",
		room:    func() error { return needFree(c.DataDir, minFree()) },
		dead:    s.dead,
	}
	s.store.begin()
	if err := errors.Join(s.clearAlarms(ctx), s.store.open(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("open the embedded etcd in %s: %w", c.DataDir, err), s.Close())
	}
	return s, nil
}

// clearAlarms makes room in a database that has reached its quota. Until then etcd
// refuses writes, and no other client can reach an embedded server.
func (s *Server) clearAlarms(ctx context.Context) error {
	alarms, err := s.store.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("ask for alarms: %w", err)
	}
	if len(alarms.Alarms) == 0 {
		return nil
	}
	_, at, err := s.store.listAt(ctx, 0)
	if err != nil {
		return err
	}
	_, err = s.store.client.Compact(ctx, s.store.raw(at), clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact: %w", err)
	}
	if err := s.etcd.Defragment(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	if _, err := s.store.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("clear the alarm: %w", err)
	}
	return nil
}

// Store returns the server's store, which may be used until Close.
func (s *Server) Store() store.Store { return s.store }

// Failed is closed when the server has failed: its disk failed, or filled up despite
// the reserve. All calls return an error then; Err has the cause. Only a new process
// can open the directory again.
func (s *Server) Failed() <-chan struct{} { return s.dead.Done() }

// Err is the cause of the failure, with a hint, or nil.
func (s *Server) Err() error { return s.explain(context.Cause(s.dead)) }

// Close stops the server and waits until all of it has stopped. Leases and records
// stay on disk: from the next Open a lease has its full TTL again.
func (s *Server) Close() error {
	timeout := closeTimeout
	if s.dead.Err() != nil {
		timeout = closeTimeoutFailed
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		// A call that reads the database while it is closed would panic.
		s.store.calls.Close()
		s.store.client.Close() // ends the watches; it cannot fail
		s.etcd.HardStop()
	}()
	select {
	case <-stopped:
		return errors.Join(s.Err(), s.lock.Close())
	case <-time.After(timeout):
		// etcd still has the files open, so the lock is kept.
		if err := s.Err(); err != nil {
			return fmt.Errorf("close the embedded etcd, which has failed: %w", err)
		}
		return fmt.Errorf("close the embedded etcd: it did not stop within %v", timeout)
	}
}

// prepareDir prepares the directory: mode, lock, free space.
func prepareDir(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, withFileHint(dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, withFileHint(dir, err)
	}
	want := minFree()
	if _, err := os.Stat(dbPath(dir)); errors.Is(err, os.ErrNotExist) {
		want = minFreeNew()
	}
	if err := needFree(dir, want); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close the data directory to others: %w", err)
	}
	return nil
}

func withFileHint(dir string, err error) error {
	if hint := fileHint(dir, err); hint != "" {
		return holdfast.WithHint(err, hint)
	}
	return err
}

// start starts the server and waits until it accepts writes.
func (s *Server) start(ctx context.Context, log *slog.Logger) error {
	conf, err := s.config(log)
	if err != nil {
		return err
	}
	if s.etcd, err = s.load(ctx, conf); err != nil {
		return s.explain(err)
	}
	if err := fillHoles(dbPath(s.dir)); err != nil {
		s.etcd.Cleanup()
		return s.explain(err)
	}
	s.etcd.Start()
	select {
	case <-s.etcd.ReadyNotify():
		return nil
	case <-s.dead.Done():
		err = s.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.etcd.HardStop()
	return err
}

// load reads the directory. Where etcd would end the process or panic because of
// broken files, only a goroutine ends here, and load returns the cause.
func (s *Server) load(ctx context.Context, conf config.ServerConfig) (*etcdserver.EtcdServer, error) {
	type result struct {
		server *etcdserver.EtcdServer
		err    error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errEnded}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("read etcd's files: %v", p)
			}
			done <- r
		}()
		// Reading a truncated database faults in mapped memory.
		debug.SetPanicOnFault(true)
		if r.err = checkFiles(s.dir, conf.Logger); r.err == nil {
			r.server, r.err = etcdserver.NewServer(conf)
		}
	}()
	select {
	case r := <-done:
		if err := context.Cause(s.dead); err != nil {
			return nil, err
		}
		return r.server, r.err
	case <-s.dead.Done(): // in another goroutine of etcd, for which load waits
		return nil, context.Cause(s.dead)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// explain adds a hint.
func (s *Server) explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if hint := fileHint(s.dir, err); hint != "" {
		return holdfast.WithHint(err, hint)
	}
	return holdfast.WithHint(err, "the files in "+s.dir+" seem to be broken: restore them, or move the directory away to begin with an empty store; containers that run are then strays")
}

// config is for one member with few writes: fast election, little memory, frequent
// compaction.
func (s *Server) config(log *slog.Logger) (config.ServerConfig, error) {
	const name = "holdfast"
	logger := zapLogger(log, s.fail)
	// A member needs an address. Nothing listens on it.
	urls, err := types.NewURLs([]string{"http://127.0.0.1:2380"})
	if err != nil {
		return config.ServerConfig{}, fmt.Errorf("make the member's address: %w", err)
	}
	return config.ServerConfig{
		Name:                name,
		DataDir:             s.dir,
		Logger:              logger,
		PeerURLs:            urls,
		ClientURLs:          urls,
		InitialPeerURLsMap:  types.URLsMap{name: urls},
		InitialClusterToken: name,
		NewCluster:          true,

		// The shortest lease is 1.5 elections, rounded up to a second (NewServer in
		// etcd's etcdserver/server.go). With one member an election only delays the
		// start.
		TickMs:                     100,
		ElectionTicks:              2,
		InitialElectionTickAdvance: true,

		SnapshotCount:          5000, // writes between snapshots of the raft log, which is in memory
		SnapshotCatchUpEntries: 100,  // no other member has to catch up
		MaxSnapFiles:           2,
		MaxWALFiles:            2,

		AutoCompactionMode:                "periodic",
		AutoCompactionRetention:           5 * time.Minute, // the history that watches may need
		QuotaBackendBytes:                 256 << 20,
		BootstrapDefragThresholdMegabytes: 32,

		BcryptCost:                  10, // unused: there are no passwords; etcd warns of 0
		MaxTxnOps:                   128,
		MaxRequestBytes:             1 << 20,
		WarningApplyDuration:        500 * time.Millisecond,
		WarningUnaryRequestDuration: time.Second,
		WatchProgressNotifyInterval: time.Minute,
		DowngradeCheckTime:          time.Minute,
		CompactHashCheckTime:        time.Hour,
		MaxLearners:                 1,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(name, logger),
	}, nil
}
