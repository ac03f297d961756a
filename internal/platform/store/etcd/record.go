package etcd

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
)

// The keys of the records. Holdfast does not touch keys outside prefix.
const (
	prefix        = "/holdfast/v1/"
	sessionPrefix = prefix + "sessions/"
	nodePrefix    = prefix + "nodes/"
)

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode record: %w", err)
	}
	return string(b), nil
}

// record is the stored form of a session's record. etcd keeps the revisions with the
// key.
type record struct {
	holdfast.Owner
	Base holdfast.Revision `json:"epoch_base,omitempty"` // of the claim, see baseKey
}

func encodeOwner(o holdfast.Owner, base holdfast.Revision) (string, error) {
	o.Epoch, o.Revision = 0, 0
	return encode(record{o, base})
}

func (s *Store) decodeRecord(kv *mvccpb.KeyValue) (record, error) {
	var r record
	if err := json.Unmarshal(kv.Value, &r); err != nil {
		return record{}, fmt.Errorf("decode record %s: %w", kv.Key, err)
	}
	r.Key = sessionKey(kv)
	r.Epoch, r.Revision = holdfast.Epoch(r.Base+holdfast.Revision(kv.CreateRevision)), s.revision(kv.ModRevision)
	return r, nil
}

func (s *Store) decodeOwner(kv *mvccpb.KeyValue) (holdfast.Owner, error) {
	r, err := s.decodeRecord(kv)
	return r.Owner, err
}

func decodeNode(kv *mvccpb.KeyValue) (holdfast.Node, error) {
	var n holdfast.Node
	if err := json.Unmarshal(kv.Value, &n); err != nil {
		return holdfast.Node{}, fmt.Errorf("decode record %s: %w", kv.Key, err)
	}
	return n, nil
}

func sessionKey(kv *mvccpb.KeyValue) holdfast.SessionKey {
	return holdfast.SessionKey(strings.TrimPrefix(string(kv.Key), sessionPrefix))
}

// found is the record that a transaction's Else branch has read, or the zero Owner.
func (s *Store) found(r *clientv3.TxnResponse) (holdfast.Owner, error) {
	if len(r.Responses) != 1 || r.Responses[0].GetResponseRange() == nil {
		return holdfast.Owner{}, errMismatch
	}
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return holdfast.Owner{}, nil
	}
	return s.decodeOwner(kvs[0])
}

// refused is the answer of a transaction whose condition did not hold: the present
// record and the reason.
func (s *Store) refused(doing string, r *clientv3.TxnResponse, reason error) (holdfast.Owner, error) {
	present, err := s.found(r)
	if err != nil {
		reason = err
	}
	return present, fmt.Errorf("%s: %w", doing, reason)
}
