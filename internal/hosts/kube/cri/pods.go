package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast"
)

// Sandbox is the environment that the containers of a pod share.
type Sandbox struct {
	ID        string
	Namespace string
	Name      string // the pod's
	UID       string // the pod's
	Ready     bool
	Created   time.Time
	Labels    map[string]string
	Handler   string // the runtime handler of its containers; "": the runtime's default
	// Seen is when the kubelet first received the pod, from its annotation; zero
	// without the annotation.
	Seen time.Time
}

// Container is a container of a pod. Times are zero if they are not known.
type Container struct {
	ID      string
	Sandbox string // id of the sandbox
	Name    string // in the pod
	Attempt int    // 0: the first of its name in the pod
	Image   string // as the pod specifies it; in a list, possibly the image's id
	ImageID string // as Images has it; before version 1.30 of the interface, from the image's reference
	State   string // created, running or exited
	Labels  map[string]string
	Created time.Time
	Started time.Time // this field and the next ones are set by Status only
	Ended   time.Time
	Code    int
	Reason  string // why it ended: Completed, Error, StartError, …
	Message string
	// Grace is the grace period to stop, as noted by the kubelet; negative: not
	// noted.
	Grace time.Duration
}

// Annotations that the kubelet sets.
const (
	seenAnnotation  = "kubernetes.io/config.seen"
	graceAnnotation = "io.kubernetes.pod.terminationGracePeriod" // seconds
)

// Pods returns all sandboxes and all containers, running or not, in two requests.
func (r *Runtime) Pods(ctx context.Context) ([]Sandbox, []Container, error) {
	boxes, err := r.client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, r.failed("list pods", err)
	}
	found, err := r.client.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, nil, r.failed("list containers", err)
	}
	var sandboxes []Sandbox
	for _, b := range boxes.Items {
		m := b.GetMetadata()
		s := Sandbox{
			ID: b.Id, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(),
			Ready: b.State == runtime.PodSandboxState_SANDBOX_READY, Created: instant(b.CreatedAt), Labels: b.Labels, Handler: b.RuntimeHandler,
		}
		if t, err := time.Parse(time.RFC3339Nano, b.Annotations[seenAnnotation]); err == nil {
			s.Seen = t
		}
		sandboxes = append(sandboxes, s)
	}
	var containers []Container
	for _, c := range found.Containers {
		containers = append(containers, Container{
			ID: c.Id, Sandbox: c.PodSandboxId, Name: c.GetMetadata().GetName(), Attempt: int(c.GetMetadata().GetAttempt()),
			Image: c.GetImage().GetImage(), ImageID: cmp.Or(c.ImageId, c.ImageRef), State: containerState(c.State),
			Labels: c.Labels, Created: instant(c.CreatedAt), Grace: grace(c.Annotations),
		})
	}
	return sandboxes, containers, nil
}

func grace(annotations map[string]string) time.Duration {
	n, err := strconv.Atoi(annotations[graceAnnotation])
	if err != nil || n < 0 {
		return -1
	}
	return time.Duration(n) * time.Second
}

// instant converts a time of the interface, in nanoseconds since 1970; 0 is unknown.
func instant(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// Status returns everything known of one container except its sandbox. All
// errors, also for a missing container, wrap holdfast.ErrEngine.
func (r *Runtime) Status(ctx context.Context, id string) (Container, error) {
	a, err := r.client.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return Container{}, r.failed("status of container "+id, err)
	}
	s := a.GetStatus()
	return Container{
		ID: s.GetId(), Name: s.GetMetadata().GetName(), Attempt: int(s.GetMetadata().GetAttempt()),
		Image: cmp.Or(s.GetImage().GetUserSpecifiedImage(), s.GetImage().GetImage()), ImageID: cmp.Or(s.GetImageId(), s.GetImageRef()),
		State: containerState(s.GetState()), Created: instant(s.GetCreatedAt()), Started: instant(s.GetStartedAt()), Ended: instant(s.GetFinishedAt()),
		Code: int(s.GetExitCode()), Reason: s.GetReason(), Message: s.GetMessage(), Grace: grace(s.GetAnnotations()),
	}, nil
}

// Pid returns the init process of a running container, from the verbose status of
// containerd and CRI-O.
func (r *Runtime) Pid(ctx context.Context, id string) (int, error) {
	a, err := r.client.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, r.failed("status of container "+id, err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if text := a.GetInfo()["info"]; text != "" {
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return 0, r.failed("status of container "+id, err)
		}
	}
	if info.Pid <= 0 {
		return 0, fmt.Errorf("%w: the container runtime does not report the pid of container %s", holdfast.ErrEngine, id)
	}
	return info.Pid, nil
}

// Images returns the ids of the images on this node with their sizes in bytes:
// with containerd the downloaded size, with other runtimes the size on disk.
func (r *Runtime) Images(ctx context.Context) (map[string]int64, error) {
	a, err := r.images.ListImages(ctx, &runtime.ListImagesRequest{})
	if err != nil {
		return nil, r.failed("list images", err)
	}
	sizes := make(map[string]int64, len(a.Images))
	for _, i := range a.Images {
		sizes[i.Id] = int64(min(i.Size, 1<<62)) // #nosec G115 -- it fits
	}
	return sizes, nil
}
