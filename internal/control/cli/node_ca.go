package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/platform/pki"
)

// certificateResult is the result of a command that made certificates.
type certificateResult struct {
	Node  holdfast.NodeID `json:"node,omitempty"`
	Dir   string          `json:"dir"`
	Until time.Time       `json:"until"`
}

func (a *app) nodeInitCA() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "init-ca",
		Short: "Make a fleet's certificate authority",
		Long: "Make the certificate authority of a fleet's nodes: ca.pem, and ca.key, which signs certificates and stays with you.\n" +
			"No agent or network is needed. The authority is valid for ten years. Existing files are not overwritten.",
		Example: "  holdfast node init-ca --out fleet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usage(cmd, fmt.Errorf("--out is missing"))
			}
			until, err := pki.InitCA(out, a.deps.Now())
			return show(a.ui, certificateResult{Dir: out, Until: until}, err, func(w io.Writer, _ certificateResult) {
				fmt.Fprintf(w, "%s has the authority, valid until %s\n", clean(out), until.Format(time.DateOnly))
				fmt.Fprintf(w, "ca.key signs for the whole fleet: keep it off the nodes\n")
			})
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "directory to make it in")
	return cmd
}

func (a *app) nodeJoin() *cobra.Command {
	var (
		j    pki.Join
		node string
	)
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Give a node its certificate",
		Long: "Make the certificate of a node for the other nodes: node.pem, node.key and a copy of the authority's ca.pem. Copy these files to the node.\n" +
			"No agent or network is needed. The agent loads a renewed certificate without a restart.",
		Example: "  holdfast node join --ca fleet --node web-1 --out web-1\n" +
			"  holdfast node join --ca fleet --node web-1 --address web-1.example.org --address 10.0.0.7 --out web-1 --renew",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, f := range []struct{ name, value string }{{"ca", j.CA}, {"node", node}, {"out", j.Out}} {
				if f.value == "" {
					return usage(cmd, fmt.Errorf("--%s is missing", f.name))
				}
			}
			if j.Validity <= 0 {
				return usage(cmd, fmt.Errorf("--validity is %v, it must be over 0", j.Validity))
			}
			j.Node, j.Now = holdfast.NodeID(node), a.deps.Now()
			until, err := j.Do()
			return show(a.ui, certificateResult{Node: j.Node, Dir: j.Out, Until: until}, err, func(w io.Writer, _ certificateResult) {
				fmt.Fprintf(w, "%s has the certificate of node %s, valid until %s\n", clean(j.Out), clean(node), until.Format(time.DateOnly))
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&j.CA, "ca", "", "directory of the authority, made by 'holdfast node init-ca'")
	f.StringVar(&node, "node", "", "the node's id, as in its agent's configuration")
	f.StringArrayVar(&j.Addresses, "address", nil, "host name or IP address of the node, for other programs; nodes check the id (may be repeated)")
	f.StringVar(&j.Out, "out", "", "directory for the files")
	f.DurationVar(&j.Validity, "validity", pki.DefaultValidity, "how long the certificate is valid, at most as long as the authority")
	f.BoolVar(&j.Renew, "renew", false, "replace the existing certificate")
	return cmd
}
