package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// checkFiles reads the database and the log before etcd does, and returns an error if
// they are not what etcd has written. etcd checks them less: a broken page makes
// bbolt panic in a goroutine of its own, where the panic cannot be recovered. With a
// log that ends before the database, etcd starts, and then skips writes until the log
// has caught up.
//
// It may panic on broken files; the caller recovers.
func checkFiles(dir string, logger *zap.Logger) error {
	stored, err := checkDatabase(dbPath(dir))
	if err != nil {
		return err
	}
	logged, err := lastLogged(filepath.Join(dir, "member", "wal"), logger)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if stored > logged {
		return fmt.Errorf("the database is at write %d but the log ends at %d: a part of the log is missing", stored, logged)
	}
	return nil
}

// checkDatabase reads every page in use and returns the index of the last write in
// the database, or 0 if there is none. The index is "consistent_index" in the bucket
// "meta" (etcd's storage/schema).
func checkDatabase(path string) (uint64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, nil // all writes are still in the log
	}
	if err != nil {
		return 0, fmt.Errorf("read the database: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return 0, fmt.Errorf("read the database: %w", err)
	}
	defer db.Close()
	var index uint64
	err = db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if v := meta.Get([]byte("consistent_index")); len(v) == 8 {
				index = binary.BigEndian.Uint64(v)
			}
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	if err != nil {
		return 0, fmt.Errorf("read the database: %w", err)
	}
	return index, nil
}

// lastLogged is the index of the log's last entry, or 0 if there is no log.
func lastLogged(dir string, logger *zap.Logger) (uint64, error) {
	if !wal.Exist(dir) {
		return 0, nil
	}
	snapshots, err := wal.ValidSnapshotEntries(logger, dir)
	if err != nil {
		return 0, err
	}
	if len(snapshots) == 0 {
		return 0, errors.New("it has no first segment")
	}
	last := snapshots[len(snapshots)-1]
	w, err := wal.OpenForRead(logger, dir, last)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	_, _, entries, err := w.ReadAll()
	if err != nil {
		return 0, err
	}
	if len(entries) > 0 {
		return entries[len(entries)-1].GetIndex(), nil
	}
	return last.GetIndex(), nil
}
