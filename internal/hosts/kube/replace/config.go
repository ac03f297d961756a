package replace

import (
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast/internal/hosts/kube"
)

// Config configures a replacement of nodes.
type Config struct {
	Selector  string // labels of the nodes; "" with Limits or Resume: all
	Limits    Limits // only nodes over a limit; empty: all
	Namespace string // of the agents' leases

	// MaxUnavailable is how many nodes are drained at a time, 1 to 100.
	MaxUnavailable int
	Rules          Rules
	Grace          int // the pods' grace period in seconds; negative: their own

	DrainLimit   time.Duration // for a node's pods to be gone
	ReadyLimit   time.Duration // for them to be ready elsewhere, after that
	CommandLimit time.Duration // for the command
	Patience     time.Duration // how long the API server may be unreachable at a time

	// Command deletes a machine: a program and its arguments, in which {node} is
	// replaced by the node's name and {provider-id} by the cloud's name of the
	// machine. It is run without a shell. $HOLDFAST_NODE and
	// $HOLDFAST_PROVIDER_ID are set, too. Empty: nothing is run. After a crash it
	// may run again for the same node.
	Command []string
	Output  io.Writer // receives the command's output; nil: discarded

	// Resume continues an earlier run that did not end.
	Resume bool

	// Look is the minimum poll interval; 0: a second or two. For tests.
	Look time.Duration
}

// maxAtOnce bounds MaxUnavailable.
const maxAtOnce = 100

// Validate checks what can be checked without a cluster.
func (c Config) Validate() error {
	switch {
	case c.Selector == "" && len(c.Limits) == 0 && !c.Resume:
		return errors.New("no nodes are selected: use --selector, --worse-than, or both")
	case c.Resume && (c.Selector != "" || len(c.Limits) > 0):
		return errors.New("--resume continues with the nodes of the earlier run, and excludes --selector and --worse-than")
	case c.MaxUnavailable < 1 || c.MaxUnavailable > maxAtOnce:
		return fmt.Errorf("--max-unavailable is %d, and must be from 1 to %d", c.MaxUnavailable, maxAtOnce)
	case c.DrainLimit <= 0 || c.ReadyLimit <= 0 || c.CommandLimit <= 0 || c.Patience <= 0:
		return errors.New("time limits must be greater than 0")
	}
	return nil
}

// Runner plans and runs. Only one goroutine may call its methods at a time.
type Runner struct {
	client *kube.Client
	conf   Config
	drain  Drain
}

// New returns a Runner. It makes no request.
func New(client *kube.Client, conf Config) (*Runner, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	return &Runner{
		client: client, conf: conf,
		drain: Drain{Client: client, Rules: conf.Rules, Grace: conf.Grace, Patience: conf.Patience, Again: conf.Look, Look: conf.Look},
	}, nil
}

// Step is a progress message.
type Step struct {
	Node string `json:"node"`
	What string `json:"what"`
}

// Report is the result of a run.
type Report struct {
	Run   string       `json:"run"`
	Nodes []NodeReport `json:"nodes"` // those that were begun
	// Uncordoned nodes take pods again: the run stopped before they were drained.
	Uncordoned []string `json:"uncordoned"`
	// Left nodes are drained and cordoned, and the run has not ended for them:
	// --resume continues.
	Left    []string `json:"left"`
	Stopped string   `json:"stopped,omitempty"` // why, before its end
}

// NodeReport is one node.
type NodeReport struct {
	Node    string      `json:"node"`
	Phase   Phase       `json:"phase"` // how far it came
	Evicted int         `json:"evicted"`
	Pods    []PodReport `json:"pods"`
	Error   string      `json:"error,omitempty"`
}

// PodReport is an evicted pod and its replacement.
type PodReport struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"` // ReplicaSet/web-7d
	Old       Place  `json:"old"`
	New       *Place `json:"new"` // null: unknown
}

// Place is a pod on a node, with how long it took to start there.
type Place struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	Times
}
