package api_test

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/platform/keyfile"
)

const (
	oldToken = "old-0123456789abcdef"
	newToken = "new-0123456789abcdef"
)

// Tokens are rotated without a restart: the new token is added, and counts beside the
// old one until the old one is removed.
func TestTokensAreRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("ops " + oldToken + "\n")
	synctest.Test(t, func(t *testing.T) {
		all, err := api.OpenTokens(api.TokenFiles{Admin: path}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		h := api.New(new(apitest.Backend).Parts(), api.Options{Tokens: all})
		step := func(what string, want map[string]int) {
			t.Helper()
			time.Sleep(keyfile.Every)
			for token, status := range want {
				r := httptest.NewRequest("POST", "/v1/node/cordon", nil)
				r.Header.Set("Authorization", "Bearer "+token)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != status {
					t.Errorf("%s: %s: status %d, want %d", what, token, w.Code, status)
				}
			}
		}
		step("one", map[string]int{oldToken: 204, newToken: 401})
		write("ops " + oldToken + "\nops " + newToken + "\n")
		step("both", map[string]int{oldToken: 204, newToken: 204})
		write("ops short\n")
		step("a bad file", map[string]int{oldToken: 204, newToken: 204})
		write("ops " + newToken + "\n")
		step("the new one", map[string]int{oldToken: 401, newToken: 204})
	})
}

func TestTokenFilesThatAreRefused(t *testing.T) {
	const secret = "0123456789abcdef"
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"empty":        {"", "the file has no token"},
		"only remarks": {"# ops " + secret + "\n\n", "the file has no token"},
		"short":        {"ops 0123456789abcde\n", "line 1: the token has 15 bytes"},
		"long":         {"\n" + strings.Repeat("x", 513), "line 2: the token has 513 bytes"},
		"three words":  {"ops " + secret + " x", "line 1 is neither"},
		"name":         {"o\"ps " + secret, "line 1 is neither"},
		"long name":    {strings.Repeat("o", 65) + " " + secret, "line 1 is neither"},
		"too many":     {strings.Repeat(secret+"\n", 65), "the file has 65 tokens"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, files := range []api.TokenFiles{{Admin: path}, {Read: path}} {
			_, err := api.OpenTokens(files, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), secret[:15]) {
				t.Errorf("%s: %v, want %q and no token", name, err, c.want)
			}
			if holdfast.HintOf(err) == "" {
				t.Errorf("%s: no hint", name)
			}
		}
	}
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := api.OpenTokens(api.TokenFiles{Read: open}, slog.New(slog.DiscardHandler)); holdfast.HintOf(err) != "chmod 600 "+open {
		t.Errorf("a file that others can read: %v", err)
	}
	if none, err := api.OpenTokens(api.TokenFiles{}, slog.New(slog.DiscardHandler)); none != nil || err != nil {
		t.Errorf("without files: %v, %v", none, err)
	}
}

// A token that is in both files opens every route.
func TestTokenOfBothFiles(t *testing.T) {
	s := serve(t, &apitest.Backend{}, api.Options{Tokens: tokens(t, "a "+oldToken, "b "+oldToken)})
	if r := call(t, s, "POST", "/v1/node/cordon", "", "Authorization: Bearer "+oldToken); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
}
