package job

import "holdfast/internal/platform/linux/owner"

// Labels of everything that a job makes.
const (
	LabelJob   = "holdfast.job"       // the job's id
	LabelOwner = "holdfast.job.owner" // the process that runs it
	LabelIndex = "holdfast.job.index" // index of the parallel run
	LabelName  = "holdfast.job.name"  // the container's name in the job
)

// nameOfAll returns the prefix of the names of all containers and networks of a
// job.
func nameOfAll(id string) string { return "holdfast-" + id + "-" }

// Owner identifies the process that runs a job.
type Owner = owner.Owner

// Self returns the Owner of this process.
func Self() (Owner, error) { return owner.Self() }
