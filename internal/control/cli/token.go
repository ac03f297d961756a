package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/sessions/gateway/token"
)

func (a *app) tokenCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "token",
		Short:   "Make tokens for clients that connect to sessions",
		Long:    "Make connect tokens, and the secrets that sign them. No agent is needed: the gateway checks a token with the secret alone.",
		Example: "  (umask 077; holdfast token new-secret > tokens)\n  holdfast token create --secrets tokens --key alice",
	}, a.tokenCreate(), a.tokenNewSecret())
}

// tokenResult is the output of `token create`.
type tokenResult struct {
	Token   string                `json:"token"`
	Secret  string                `json:"secret"` // the id of the secret that signed it
	Keys    []holdfast.SessionKey `json:"keys"`
	Prefix  string                `json:"prefix,omitempty"`
	Ports   holdfast.Ports        `json:"ports,omitzero"`
	Expires time.Time             `json:"expires"`
}

func (a *app) tokenCreate() *cobra.Command {
	var (
		file, prefix string
		keys         []string
		ports        []int
		allPorts     bool
		ttl          time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a connect token for sessions",
		Long: "Make a token with which a client may connect to the sessions with the given keys, to those with keys of a prefix, or to both.\n" +
			"The first secret of the file signs it. A client with the token may connect until it expires.\n" +
			"The token opens the template's own port. With --port it opens the named ports instead; 0 is the template's own.",
		Example: "  holdfast token create --secrets /etc/holdfast/tokens --key alice\n" +
			"  holdfast token create --secrets /etc/holdfast/tokens --key alice --port 0 --port 3000\n" +
			"  holdfast token create --secrets /etc/holdfast/tokens --prefix team- --ttl 8h --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file == "":
				return usage(cmd, errors.New("--secrets is missing"))
			case len(keys) == 0 && prefix == "":
				return usage(cmd, errors.New("--key or --prefix is missing"))
			case allPorts && len(ports) > 0:
				return usage(cmd, errors.New("--port and --all-ports exclude each other"))
			case ttl < time.Second || ttl > token.MaxTTL:
				return usage(cmd, fmt.Errorf("--ttl is %v, it must be from 1s to %v", ttl, token.MaxTTL))
			}
			return a.createToken(file, keys, token.Grant{Prefix: prefix, Ports: holdfast.Ports{All: allPorts, List: ports}}, ttl)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "secrets", "", "file of the secrets, the gateway's tokens_file")
	f.StringArrayVar(&keys, "key", nil, "session key that the token is for (may be repeated)")
	f.StringVar(&prefix, "prefix", "", "prefix of session keys that the token is for, such as team-")
	f.IntSliceVar(&ports, "port", nil, "port of the container that the token opens; 0 is the template's own (may be repeated)")
	f.BoolVar(&allPorts, "all-ports", false, "the token opens every port that the template allows")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid, such as 30m or 8h")
	return cmd
}

// createToken completes and signs a grant, and prints the token.
func (a *app) createToken(file string, keys []string, g token.Grant, ttl time.Duration) error {
	secrets, err := token.ReadSecrets(file)
	if err != nil {
		return err
	}
	now := a.deps.Now().Truncate(time.Second)
	g.Keys, g.IssuedAt, g.Expires = []holdfast.SessionKey{}, now, now.Add(ttl.Truncate(time.Second))
	for _, k := range keys {
		key, err := holdfast.ParseSessionKey(k)
		if err != nil {
			return err
		}
		g.Keys = append(g.Keys, key)
	}
	text, err := token.Sign(secrets[0], g)
	if err != nil {
		return Usage(err) // the secret is valid: the request was not
	}
	made := tokenResult{Token: text, Secret: secrets[0].ID, Keys: g.Keys, Prefix: g.Prefix, Ports: g.Ports, Expires: g.Expires}
	return a.ui.result(made, func(w io.Writer) { fmt.Fprintln(w, text) })
}

func (a *app) tokenNewSecret() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "new-secret",
		Short: "Make a secret that signs tokens",
		Long: "Print a new secret as a line for the gateway's tokens_file. The first line of the file signs, and all lines verify.\n" +
			"Other users must not be able to read the file: its mode must be 0600.",
		Example: "  (umask 077; holdfast token new-secret > /etc/holdfast/tokens)\n  holdfast token new-secret --id 2026-06",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if id == "" && cmd.Flags().Changed("id") {
				return usage(cmd, errors.New("--id is empty"))
			}
			s, err := token.NewSecret(id)
			if err != nil {
				return Usage(err)
			}
			return a.ui.result(map[string]string{"id": s.ID, "line": s.Line()}, func(w io.Writer) { fmt.Fprintln(w, s.Line()) })
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "name of the secret, which tokens contain (default a random one)")
	return cmd
}
