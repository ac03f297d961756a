package rig

import (
	"fmt"
	"os"
	"path/filepath"

	"holdfast"
)

// CheckRunsc reports a path of gVisor's runsc that is not absolute or not an executable file. The path
// is written into the agent's configuration, so it has to be absolute.
func CheckRunsc(path string) error {
	if !filepath.IsAbs(path) {
		return holdfast.WithHint(fmt.Errorf("the path of runsc is %q, it must be absolute", path), "for example --runsc /usr/local/bin/runsc")
	}
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return holdfast.WithHint(fmt.Errorf("there is no runsc at %s", path), "packaging/dev/runsc.sh builds one; --runsc says where another one is")
	}
	return nil
}
