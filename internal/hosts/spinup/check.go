package spinup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// damagedError says that the file is not what a Store left.
type damagedError struct{ why error }

func (e *damagedError) Error() string { return "the file is damaged: " + e.why.Error() }
func (e *damagedError) Unwrap() error { return e.why }

// Hint says what becomes of it.
func (e *damagedError) Hint() string {
	return "an agent that starts with it moves it aside and begins new records"
}

// checkFile reads every page in use and every record. bbolt looks at pages only
// when it needs them, and then a broken one ends the program: by a panic, or, in
// a file that was cut off, by a fault at an address that the mapping no longer
// backs. Here both are caught.
func checkFile(path string) (err error) {
	if ok, err := isFile(path); !ok {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var db *bbolt.DB
	defer func() {
		if r := recover(); r != nil {
			err = &damagedError{fmt.Errorf("%v", r)}
			if db == nil {
				return
			}
		}
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	db, err = openFile(path, bbolt.Options{ReadOnly: true, PreLoadFreelist: true})
	switch {
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return &damagedError{err}
	case err != nil:
		return err
	}
	return db.View(checkRecords)
}

// checkRecords holds the records to what Append wrote.
func checkRecords(tx *bbolt.Tx) error {
	// A page beyond the end of the file would be a fault in Check's own
	// goroutine, where nobody catches it.
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return &damagedError{fmt.Errorf("it was cut off: %d of %d bytes are there", info.Size(), tx.Size())}
	}
	var bad error
	for found := range tx.Check() { // it ends only when all was read
		if bad == nil {
			bad = found
		}
	}
	if bad != nil {
		return &damagedError{bad}
	}
	records, meta := tx.Bucket(recordsBucket), tx.Bucket(metaBucket)
	if records == nil && meta == nil {
		return nil // it was just begun
	}
	if records == nil || meta == nil {
		return &damagedError{errors.New("a bucket is missing")}
	}
	n := 0
	err = records.ForEach(func(k, v []byte) error {
		n++
		var r Record
		if err := json.Unmarshal(v, &r); err != nil || r.ID != string(k) {
			return &damagedError{fmt.Errorf("record %q is none", k)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	count, err := readCount(tx)
	if err != nil || count != n {
		return &damagedError{fmt.Errorf("it has %d records and says %d", n, count)}
	}
	return nil
}
