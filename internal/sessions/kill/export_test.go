package kill

// Only leaves the target the control groups of one version, as on a host that
// has no other.
func (t *Target) Only(v2 bool) (left int) {
	groups := t.groups
	t.groups = nil
	for _, g := range groups {
		if g.V2 == v2 {
			t.groups = append(t.groups, g)
		}
	}
	return len(t.groups)
}
