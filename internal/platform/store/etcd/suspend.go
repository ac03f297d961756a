package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// leftKey is the key of the note that Suspend leaves for the next claim of a session.
func leftKey(key holdfast.SessionKey) string {
	return notePrefix + store.SuspendedNotes + string(key)
}

// leftIn is the text of the note that a claim's transaction has deleted.
func leftIn(r *clientv3.TxnResponse) string {
	if len(r.Responses) != 2 {
		return ""
	}
	for _, kv := range r.Responses[1].GetResponseDeleteRange().GetPrevKvs() {
		return string(kv.Value)
	}
	return ""
}

// Suspend deletes a record and leaves a note, in one transaction.
func (s *Store) Suspend(ctx context.Context, o holdfast.Owner, text string) error {
	s.written.drop(o)
	doing := fmt.Sprintf("suspend %s", o.Key)
	put, err := s.putNote(store.SuspendedNotes+string(o.Key), []byte(text), 0)
	if err != nil {
		return err
	}
	key := sessionPrefix + string(o.Key)
	r, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{s.unchanged(key, o.Revision)}, []clientv3.Op{clientv3.OpDelete(key), put}, nil))
	if err != nil {
		return err
	}
	if !r.Txn().Succeeded {
		return fmt.Errorf("%s: %w", doing, store.ErrStale)
	}
	return nil
}
