package netpool

import (
	"fmt"
	"os"
	"regexp"
)

// hostnameLen is how much of its id an engine calls a container by that was given
// no host name.
const hostnameLen = 12

// call gives the network a session's host name: in the files that the engine
// shares between the holder and who joins it, /etc/hostname and /etc/hosts. The
// holder has never run anything but its own program, so its files are as the engine
// made them.
func (n *network) call(hostname string) error {
	if n.holder.Init().Exited() {
		return fmt.Errorf("container %s has ended", n.holder.Name)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", n.holder.Pid()))
	if err != nil {
		return fmt.Errorf("name a network: %w", err)
	}
	defer root.Close()
	if n.holder.Init().Exited() { // the pid was another's, perhaps
		return fmt.Errorf("container %s has ended", n.holder.Name)
	}
	hosts, err := root.ReadFile("etc/hosts")
	if err != nil {
		return fmt.Errorf("name a network: %w", err)
	}
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(n.hostname) + `\b`)
	if !word.Match(hosts) { // whatever that is, it is not the holder's
		return fmt.Errorf("name a network: its /etc/hosts does not have %s", n.hostname)
	}
	for file, text := range map[string][]byte{
		"etc/hosts":    word.ReplaceAllLiteral(hosts, []byte(hostname)),
		"etc/hostname": []byte(hostname + "\n"),
	} {
		if err := overwrite(root, file, text); err != nil {
			return fmt.Errorf("name a network: %w", err)
		}
	}
	return nil
}

// overwrite writes a file in place: it is a mount, which cannot be replaced.
func overwrite(root *os.Root, file string, text []byte) error {
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
