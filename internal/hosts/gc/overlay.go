package gc

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/platform/engine"
)

// overlay reads where an engine with the overlay2 driver keeps its layers (moby,
// layer/filestore.go and daemon/graphdriver/overlay2). It writes nothing there.
type overlay struct {
	db    string // layerdb
	trees string // the driver's directory
}

// openOverlay finds the layers of an engine on this host. If it finds none, why
// gives the cause. For containerd why is "": its removals only remove a name and
// free the files beside spin-ups, so linking has no use.
func openOverlay(info engine.Info) (o *overlay, why string) {
	switch {
	case info.ImageStore == engine.ClientStore:
		return nil, ""
	case info.Socket == "":
		return nil, "the engine may be on another host"
	case info.ImageStore != engine.GraphDriver || info.StorageDriver != "overlay2":
		return nil, "the storage is " + info.StorageDriver + ", not overlay2"
	}
	o = &overlay{db: filepath.Join(info.DataRoot, "image", "overlay2", "layerdb"), trees: filepath.Join(info.DataRoot, "overlay2")}
	for _, dir := range []string{o.db, o.trees} {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, "the engine's layers cannot be read at " + dir
		}
	}
	return o, ""
}

// Names assigned by the engine. No other string becomes part of a path.
var (
	chainName  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	objectName = regexp.MustCompile(`^[0-9a-f]{64}$`)
	treeName   = regexp.MustCompile(`^[a-z0-9]{1,64}(-init)?$`)
)

// size returns the size of a layer in bytes.
func (o *overlay) size(chain string) (int64, bool) {
	text, ok := o.chainFile(chain, "size")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil && n >= 0
}

// layer returns the directory with a layer's files.
func (o *overlay) layer(chain string) (string, bool) {
	id, ok := o.chainFile(chain, "cache-id")
	return o.tree(id), ok && treeName.MatchString(id)
}

// container returns the directory with the files that a container wrote.
func (o *overlay) container(id string) (string, bool) {
	if !objectName.MatchString(id) {
		return "", false
	}
	text, err := os.ReadFile(filepath.Join(o.db, "mounts", id, "mount-id"))
	name := strings.TrimSpace(string(text))
	return o.tree(name), err == nil && treeName.MatchString(name)
}

func (o *overlay) tree(name string) string { return filepath.Join(o.trees, name, "diff") }

func (o *overlay) chainFile(chain, name string) (string, bool) {
	if !chainName.MatchString(chain) {
		return "", false
	}
	text, err := os.ReadFile(filepath.Join(o.db, "sha256", strings.TrimPrefix(chain, "sha256:"), name))
	return strings.TrimSpace(string(text)), err == nil
}
