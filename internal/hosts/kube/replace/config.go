package replace

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"holdfast"
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
	ReadyLimit   time.Duration // for pods to be ready elsewhere, and for the new node to be ready
	CommandLimit time.Duration // for each command
	Patience     time.Duration // how long the API server may be unreachable at a time

	// Surge enlarges workloads that allow it before pods are evicted, by as many
	// pods as they have on the node. Then one node's pods are moved at a time.
	Surge bool

	// Commands for a node: a program and its arguments, in which {node} is
	// replaced by the node's name, {provider-id} by the cloud's name of its machine
	// and {new-node} by the name of the node that replaces it.
	// $HOLDFAST_NODE, $HOLDFAST_PROVIDER_ID and $HOLDFAST_NEW_NODE are set, too.
	// They run without a shell, and after a crash may run again for the same node.
	// Empty: nothing is run.
	Provision []string  // makes the new machine, before the pods leave the old one
	Disk      []string  // prepares the new node's disk; only with Provision
	Command   []string  // deletes the old machine
	Output    io.Writer // receives the commands' output; nil: only the report does

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
	case len(c.Disk) > 0 && len(c.Provision) == 0:
		return errors.New("--provision-disk prepares the node of --provision, and goes only with it")
	}
	for _, words := range [][]string{c.Provision, c.Disk} {
		if len(words) > 0 && !filepath.IsAbs(words[0]) {
			return fmt.Errorf("%q is not an absolute path: the command must be found on each machine that continues the run", words[0])
		}
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
	Node  string `json:"node"`
	Phase Phase  `json:"phase"` // how far it came
	// Phases are those of this run's process, in their order.
	Phases  []PhaseReport `json:"phases"`
	NewNode string        `json:"new_node,omitempty"` // the node that replaces it, if a command has made it
	Surges  []Surge       `json:"surges"`
	Evicted int           `json:"evicted"`
	Pods    []PodReport   `json:"pods"`
	Error   string        `json:"error,omitempty"`
}

// PhaseReport is one phase of a node.
type PhaseReport struct {
	Phase  Phase           `json:"phase"`
	Took   holdfast.Millis `json:"took_ms"`
	Output string          `json:"output,omitempty"` // the end of its command's output, up to 4 KiB
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
