package etcd

import (
	"encoding/json"
	"errors"
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

// encodeOwner leaves out the revisions, which etcd keeps with the key.
func encodeOwner(o holdfast.Owner) (string, error) {
	o.Epoch, o.Revision = 0, 0
	return encode(o)
}

func decodeOwner(kv *mvccpb.KeyValue) (holdfast.Owner, error) {
	var o holdfast.Owner
	if err := json.Unmarshal(kv.Value, &o); err != nil {
		return holdfast.Owner{}, fmt.Errorf("decode record %s: %w", kv.Key, err)
	}
	o.Key = sessionKey(kv)
	o.Epoch, o.Revision = holdfast.Epoch(kv.CreateRevision), holdfast.Revision(kv.ModRevision)
	return o, nil
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
func found(r *clientv3.TxnResponse) (holdfast.Owner, error) {
	if len(r.Responses) != 1 || r.Responses[0].GetResponseRange() == nil {
		return holdfast.Owner{}, errors.New("etcd's response does not match the request")
	}
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return holdfast.Owner{}, nil
	}
	return decodeOwner(kvs[0])
}

// refused is the answer of a transaction whose condition did not hold: the present
// record and the reason.
func refused(doing string, r *clientv3.TxnResponse, reason error) (holdfast.Owner, error) {
	present, err := found(r)
	if err != nil {
		reason = err
	}
	return present, fmt.Errorf("%s: %w", doing, reason)
}

// unchanged is the condition that a key has the revision.
func unchanged(key string, at holdfast.Revision) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", int64(at))
}
