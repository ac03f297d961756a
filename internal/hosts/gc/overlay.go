package gc

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"holdfast/internal/platform/engine"
)

// overlay reads where an engine with the overlay2 driver keeps its layers (moby,
// layer/filestore.go and daemon/graphdriver/overlay2). It writes nothing there.
type overlay struct {
	db    string // layerdb
	trees string // the driver's directory
}

// openOverlay finds the layers in the data root. If they are not there, why gives the cause.
func openOverlay(info engine.Info) (o *overlay, why string) {
	o = &overlay{db: filepath.Join(info.DataRoot, "image", "overlay2", "layerdb"), trees: filepath.Join(info.DataRoot, "overlay2")}
	for _, dir := range []string{o.db, o.trees} {
		if why := readable(dir); why != "" {
			return nil, why
		}
	}
	return o, ""
}

// readable returns why a directory with layers cannot be read; "" if it can.
func readable(dir string) string {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "the engine's layers cannot be read at " + dir
	}
	return ""
}

// Names assigned by the engine. No other string becomes part of a path.
var (
	chainName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`) })
	objectName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
	treeName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]{1,64}(-init)?$`) })
)

func (o *overlay) root() string { return o.trees }

// size returns the size of a layer in bytes.
func (o *overlay) size(chain string) (int64, bool) {
	text, ok := o.chainFile(chain, "size")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil && n >= 0
}

func (o *overlay) image(_ context.Context, chains []string) (dirs []string, _ error) {
	for _, chain := range chains {
		if id, ok := o.chainFile(chain, "cache-id"); ok && treeName().MatchString(id) {
			dirs = append(dirs, o.tree(id))
		}
	}
	return dirs, nil
}

func (o *overlay) container(_ context.Context, id string) ([]string, error) {
	if !objectName().MatchString(id) {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(o.db, "mounts", id, "mount-id"))
	name := strings.TrimSpace(string(text))
	if err != nil || !treeName().MatchString(name) {
		return nil, nil // the engine may have removed it meanwhile
	}
	return []string{o.tree(name)}, nil
}

func (o *overlay) tree(name string) string { return filepath.Join(o.trees, name, "diff") }

func (o *overlay) chainFile(chain, name string) (string, bool) {
	if !chainName().MatchString(chain) {
		return "", false
	}
	text, err := os.ReadFile(filepath.Join(o.db, "sha256", strings.TrimPrefix(chain, "sha256:"), name))
	return strings.TrimSpace(string(text)), err == nil
}
