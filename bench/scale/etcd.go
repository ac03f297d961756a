package scale

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"holdfast/bench/rig"
)

// members is an etcd cluster, and a client of the bench beside the clients of the nodes.
type members struct {
	*rig.Cluster
	client *clientv3.Client
}

// startMembers starts three members on loopback and returns when all serve.
func startMembers(ctx context.Context, command []string, dir string) (*members, error) {
	c, err := rig.NewCluster(rig.ClusterOptions{Members: 3, Dir: dir, Role: command})
	if err != nil {
		return nil, err
	}
	m := &members{Cluster: c}
	if err := c.Start(ctx); err != nil {
		m.stop()
		return nil, err
	}
	if m.client, err = clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), DialTimeout: rig.Patience, Logger: zap.NewNop()}); err != nil {
		m.stop()
		return nil, fmt.Errorf("connect to the etcd cluster: %w", err)
	}
	return m, nil
}

func (m *members) stop() {
	if m.client != nil {
		_ = m.client.Close() // the error only reports that it was closed
	}
	m.Stop()
}

// clusterState is the progress of the cluster. revision counts writes to keys, index is
// the raft index; size and used are bytes of the largest member's database.
type clusterState struct {
	at         time.Time
	revision   int64
	index      uint64
	size, used int64
}

func (m *members) state(ctx context.Context) (clusterState, error) {
	s := clusterState{at: time.Now()}
	for _, e := range m.Endpoints() {
		r, err := m.client.Status(ctx, e)
		if err != nil {
			return s, fmt.Errorf("ask etcd member %s how it is: %w", e, err)
		}
		s.revision, s.index = max(s.revision, r.Header.Revision), max(s.index, r.RaftIndex)
		s.size, s.used = max(s.size, r.DbSize), max(s.used, r.DbSizeInUse)
	}
	return s, nil
}
