package spinup

import (
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/internal/platform/boltfile"
)

// checkFile reads every page in use and every record. It may return
// boltfile.ErrDamaged or ErrInUse.
func checkFile(path string) error {
	return inUse(boltfile.Check(path, openTimeout, checkRecords))
}

// checkRecords compares the records with what Append writes.
func checkRecords(tx *bbolt.Tx) error {
	records, meta := tx.Bucket(recordsBucket), tx.Bucket(metaBucket)
	if records == nil && meta == nil {
		return nil // the file is new
	}
	if records == nil || meta == nil {
		return fmt.Errorf("%w: a bucket is missing", boltfile.ErrDamaged)
	}
	n := 0
	err := records.ForEach(func(k, v []byte) error {
		n++
		var r Record
		if err := json.Unmarshal(v, &r); err != nil || r.ID != string(k) {
			return fmt.Errorf("%w: record %q is not valid", boltfile.ErrDamaged, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	count, err := readCount(tx)
	if err != nil || count != n {
		return fmt.Errorf("%w: it has %d records, but its count is %d", boltfile.ErrDamaged, n, count)
	}
	return nil
}
