package etcd

// Tests of what ends a server run it in a process of their own, since a broken
// etcd leaves goroutines and locks behind until its process ends.
const childDir = "HOLDFAST_TEST_ETCD_DIR"

func child(dir string) int { return 0 }
