package e2b

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/test/lab/labtest"
)

// generators make clients of the agent's OpenAPI document.
func pythonGenerator() sdk { return sdk{"openapi-python", "0.29.1"} }

func nodeGenerator() sdk { return sdk{"openapi-node", "7.13.0"} }

// The commands of docs/clients.md make clients of the document that an agent serves, and the
// examples of the page print what it says with them.
func TestGeneratedClients(t *testing.T) {
	labtest.NeedLong(t, "needs PyPI and npm, and takes 10 s of a CPU; internal/control/api checks the document")
	const token = "0123456789abcdef0123456789abcdef"
	n := newNode(t, labtest.FreePort(t))
	tokens := filepath.Join(n.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("tests "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.apiKeys = ", token_file: " + tokens
	n.configure("", "shell", "[]")
	n.run()
	b, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, c := range []struct {
		sdk      sdk
		section  string
		generate string // the command's first words
		fence    string
		file     string
		run      string
	}{
		{pythonGenerator(), "## Python\n", "openapi-python-client generate", "```python\n", "example.py", "python3 example.py"},
		{nodeGenerator(), "## TypeScript\n", "npx openapi-typescript", "```ts\n", "example.ts",
			"npx tsc --strict --target es2022 --module nodenext --allowImportingTsExtensions --rewriteRelativeImportExtensions example.ts && node example.js"},
	} {
		t.Run(c.sdk.name, func(t *testing.T) {
			installed := c.sdk.need(t)
			_, section, _ := strings.Cut(text, c.section)
			_, command, ok := strings.Cut(fenced(t, section, "```sh\n"), c.generate)
			if before, _, _ := strings.Cut(c.run, " example."); !ok || c.file == "example.ts" && !strings.Contains(section, before) {
				t.Fatal("the page has no command")
			}
			dir := t.TempDir()
			n.fetchDocument(t, filepath.Join(dir, "openapi.json"), token)
			if c.file == "example.ts" {
				if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(fenced(t, section, c.fence)), 0o644); err != nil {
				t.Fatal(err)
			}
			sh := func(line string) string {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "sh", "-c", line)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "HOLDFAST_URL=http://"+n.api, "HOLDFAST_TOKEN="+token, "PYTHONPATH="+installed+":"+dir, "PATH="+installed+"/bin:"+os.Getenv("PATH"),
					"PYTHONDONTWRITEBYTECODE=1", "NO_UPDATE_NOTIFIER=1")
				var out, errs strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &errs
				if err := cmd.Run(); err != nil {
					t.Fatalf("%s: %v\n%s%s", line, err, &out, &errs)
				}
				return out.String()
			}
			sh(c.generate + command)
			if got, want := sh(c.run), fenced(t, section, "```text\n"); got != want {
				t.Errorf("the example prints\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// fetchDocument writes the agent's OpenAPI document to a file.
func (n *node) fetchDocument(t *testing.T, file, token string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.api+"/v1/openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	to, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = to.ReadFrom(res.Body)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
}
