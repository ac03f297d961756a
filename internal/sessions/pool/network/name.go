package network

import (
	"fmt"
	"os"
	"regexp"
)

// hostnameLen is the length of the container id that an engine uses as the host name
// if none is given.
const hostnameLen = 12

// call gives the network a session's host name. It changes /etc/hostname and
// /etc/hosts, which the engine shares between the holder and the container that joins
// it. The holder has run only its own program, so its files are as the engine created
// them.
func (n *network) call(hostname string) error {
	if n.holder.Init().Exited() {
		return fmt.Errorf("container %s has ended", n.holder.Name)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", n.holder.Pid()))
	if err != nil {
		return fmt.Errorf("name a network: %w", err)
	}
	defer root.Close()
	if n.holder.Init().Exited() { // the pid may belong to another process
		return fmt.Errorf("container %s has ended", n.holder.Name)
	}
	hosts, err := root.ReadFile("etc/hosts")
	if err != nil {
		return fmt.Errorf("name a network: %w", err)
	}
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(n.hostname) + `\b`)
	if !word.Match(hosts) { // this is not the holder's file
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

// overwrite writes a file in place, because it is a mount, which cannot be replaced.
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
