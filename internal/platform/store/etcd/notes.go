package etcd

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// notePrefix is the prefix of the notes' keys.
const notePrefix = prefix + "notes/"

func noteOf(kv *mvccpb.KeyValue) store.Note {
	return store.Note{Name: strings.TrimPrefix(string(kv.Key), notePrefix), Value: kv.Value, Revision: holdfast.Revision(kv.ModRevision)}
}

func (s *Store) putNote(name string, value []byte, id store.LeaseID) (clientv3.Op, error) {
	if err := store.CheckNote(name, value); err != nil {
		return clientv3.Op{}, err
	}
	var o []clientv3.OpOption
	if id != 0 {
		o = append(o, clientv3.WithLease(clientv3.LeaseID(id)))
	}
	return clientv3.OpPut(notePrefix+name, string(value), o...), nil
}

// PutNote writes a note.
func (s *Store) PutNote(ctx context.Context, name string, value []byte, id store.LeaseID) error {
	const doing = "put a note"
	put, err := s.putNote(name, value, id)
	if err != nil {
		return err
	}
	_, err = s.do(ctx, doing, put)
	return err
}

// TakeNote writes a note if there is none.
func (s *Store) TakeNote(ctx context.Context, name string, value []byte, id store.LeaseID) (store.Note, error) {
	const doing = "take a note"
	put, err := s.putNote(name, value, id)
	if err != nil {
		return store.Note{}, err
	}
	free := clientv3.Compare(clientv3.CreateRevision(notePrefix+name), "=", 0)
	answer, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{free}, []clientv3.Op{put}, []clientv3.Op{clientv3.OpGet(notePrefix + name)}))
	if err != nil {
		return store.Note{}, err
	}
	r := answer.Txn()
	if r.Succeeded {
		return store.Note{Name: name, Value: value, Revision: holdfast.Revision(r.Header.Revision)}, nil
	}
	if len(r.Responses) != 1 || len(r.Responses[0].GetResponseRange().GetKvs()) != 1 {
		return store.Note{}, fmt.Errorf("%s: %w", doing, errMismatch)
	}
	return noteOf(r.Responses[0].GetResponseRange().Kvs[0]), fmt.Errorf("%s: %s: %w", doing, name, store.ErrTaken)
}

// SwapNote replaces a note that has not changed.
func (s *Store) SwapNote(ctx context.Context, n store.Note, value []byte) (store.Note, error) {
	const doing = "replace a note"
	put, err := s.putNote(n.Name, value, 0)
	if err != nil {
		return store.Note{}, err
	}
	same := clientv3.Compare(clientv3.ModRevision(notePrefix+n.Name), "=", int64(n.Revision))
	answer, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{same}, []clientv3.Op{put}, nil))
	if err != nil {
		return store.Note{}, err
	}
	if r := answer.Txn(); r.Succeeded {
		return store.Note{Name: n.Name, Value: value, Revision: holdfast.Revision(r.Header.Revision)}, nil
	}
	return store.Note{}, fmt.Errorf("%s: %s: %w", doing, n.Name, store.ErrStale)
}

// ListNotes returns notes by name.
func (s *Store) ListNotes(ctx context.Context, prefix string) ([]store.Note, error) {
	r, err := s.do(ctx, "list notes", clientv3.OpGet(notePrefix+prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)))
	if err != nil {
		return nil, err
	}
	list := make([]store.Note, 0, len(r.Get().Kvs))
	for _, kv := range r.Get().Kvs {
		list = append(list, noteOf(kv))
	}
	return list, nil
}

// DropNote deletes a note.
func (s *Store) DropNote(ctx context.Context, n store.Note) error {
	key := notePrefix + n.Name
	same := clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	if n.Revision != 0 {
		same = clientv3.Compare(clientv3.ModRevision(key), "=", int64(n.Revision))
	}
	_, err := s.do(ctx, "drop a note", clientv3.OpTxn([]clientv3.Cmp{same}, []clientv3.Op{clientv3.OpDelete(key)}, nil))
	return err
}
