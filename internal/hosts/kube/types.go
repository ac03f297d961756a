package kube

import (
	"slices"
	"time"
)

// Meta is the metadata of an object.
type Meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Created         time.Time         `json:"creationTimestamp,omitzero"`
	Deleted         *time.Time        `json:"deletionTimestamp,omitempty"` // set while it is being deleted
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Owners          []Owner           `json:"ownerReferences,omitempty"`
}

// Owner is an owner reference.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller *bool  `json:"controller,omitempty"`
}

// Controlling returns the owner that recreates the object when it is deleted;
// nil: none.
func (m Meta) Controlling() *Owner {
	for i, o := range m.Owners {
		if o.Controller != nil && *o.Controller {
			return &m.Owners[i]
		}
	}
	return nil
}

// Condition is a condition of a node or a pod.
type Condition struct {
	Type      string     `json:"type"`
	Status    string     `json:"status"` // True, False or Unknown
	Reason    string     `json:"reason,omitempty"`
	Message   string     `json:"message,omitempty"`
	Heartbeat *time.Time `json:"lastHeartbeatTime,omitempty"` // nodes only
	Since     time.Time  `json:"lastTransitionTime,omitzero"`
}

// Taint is a taint of a node.
type Taint struct {
	Key    string     `json:"key"`
	Value  string     `json:"value,omitempty"`
	Effect string     `json:"effect"` // NoSchedule, PreferNoSchedule or NoExecute
	Added  *time.Time `json:"timeAdded,omitempty"`
}

// Node is a machine of the cluster.
type Node struct {
	Meta Meta `json:"metadata"`
	Spec struct {
		Unschedulable bool    `json:"unschedulable,omitempty"`
		ProviderID    string  `json:"providerID,omitempty"`
		Taints        []Taint `json:"taints,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []Condition `json:"conditions"`
		Info       struct {
			Kernel  string `json:"kernelVersion"`
			Runtime string `json:"containerRuntimeVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// Ready reports whether the node's condition Ready is true.
func (n Node) Ready() bool { return conditionOf(n.Status.Conditions, "Ready").Status == "True" }

// Condition returns the node's condition of a type.
func (n Node) Condition(kind string) (Condition, bool) {
	c := conditionOf(n.Status.Conditions, kind)
	return c, c.Type != ""
}

// conditionOf returns the condition of a type, and the zero Condition if there is
// none.
func conditionOf(all []Condition, kind string) Condition {
	i := slices.IndexFunc(all, func(c Condition) bool { return c.Type == kind })
	if i < 0 {
		return Condition{}
	}
	return all[i]
}

// Pod is a group of containers on a node.
type Pod struct {
	Meta   Meta      `json:"metadata"`
	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec is the desired state of a pod.
type PodSpec struct {
	Node           string          `json:"nodeName,omitempty"`
	Volumes        []Volume        `json:"volumes,omitempty"`
	Grace          *int64          `json:"terminationGracePeriodSeconds,omitempty"` // seconds
	InitContainers []ContainerSpec `json:"initContainers,omitempty"`
	Containers     []ContainerSpec `json:"containers,omitempty"`
}

// ContainerSpec is the desired state of a container.
type ContainerSpec struct {
	Name           string    `json:"name"`
	Image          string    `json:"image,omitempty"`
	ReadinessProbe *struct{} `json:"readinessProbe,omitempty"`
	StartupProbe   *struct{} `json:"startupProbe,omitempty"`
}

// Volume is a volume of a pod.
type Volume struct {
	Name     string    `json:"name"`
	EmptyDir *struct{} `json:"emptyDir,omitempty"`
	Claim    *struct{} `json:"persistentVolumeClaim,omitempty"`
}

// PodStatus is the observed state of a pod.
type PodStatus struct {
	Phase          string            `json:"phase"` // Pending, Running, Succeeded, Failed or Unknown
	Conditions     []Condition       `json:"conditions,omitempty"`
	InitContainers []ContainerStatus `json:"initContainerStatuses,omitempty"`
	Containers     []ContainerStatus `json:"containerStatuses,omitempty"`
}

// ContainerStatus is one container of a pod.
type ContainerStatus struct {
	Name         string         `json:"name"`
	RestartCount int            `json:"restartCount"`
	State        ContainerState `json:"state"`
}

// ContainerState has one of its fields set.
type ContainerState struct {
	Waiting *struct {
		Reason  string `json:"reason"`
		Message string `json:"message,omitempty"`
	} `json:"waiting,omitempty"`
	Running *struct {
		Started time.Time `json:"startedAt"`
	} `json:"running,omitempty"`
	Terminated *struct {
		Started  time.Time `json:"startedAt"`
		Finished time.Time `json:"finishedAt"`
		ExitCode int       `json:"exitCode"`
	} `json:"terminated,omitempty"`
}

// Ready reports whether the pod takes requests.
func (p Pod) Ready() bool {
	return p.Meta.Deleted == nil && conditionOf(p.Status.Conditions, "Ready").Status == "True"
}

// ReadySince returns when the pod's condition Ready became true; zero: it is not.
func (p Pod) ReadySince() time.Time {
	c := conditionOf(p.Status.Conditions, "Ready")
	if c.Status != "True" {
		return time.Time{}
	}
	return c.Since
}

// Finished reports whether all of the pod's containers have ended for good.
func (p Pod) Finished() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// Annotations and kinds with a meaning in Kubernetes.
const (
	mirrorAnnotation = "kubernetes.io/config.mirror"
	daemonSetKind    = "DaemonSet"
	appsV1           = "apps/v1"
)

// Mirror reports whether the pod is the mirror of a static pod of the kubelet:
// deleting it ends nothing.
func (p Pod) Mirror() bool { _, ok := p.Meta.Annotations[mirrorAnnotation]; return ok }

// OfDaemonSet reports whether a DaemonSet would recreate the pod on the same
// node.
func (p Pod) OfDaemonSet() bool {
	o := p.Meta.Controlling()
	return o != nil && o.Kind == daemonSetKind && o.APIVersion == appsV1
}

// LocalData reports whether the pod has a volume that is deleted with it.
func (p Pod) LocalData() bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v Volume) bool { return v.EmptyDir != nil })
}

// Budget is a PodDisruptionBudget.
type Budget struct {
	Meta Meta `json:"metadata"`
	Spec struct {
		Selector *LabelSelector `json:"selector,omitempty"`
	} `json:"spec"`
	Status struct {
		Allowed int `json:"disruptionsAllowed"`
		Healthy int `json:"currentHealthy"`
		Desired int `json:"desiredHealthy"`
	} `json:"status"`
}

// LabelSelector selects by labels. All of its parts must match; an empty one
// selects all.
type LabelSelector struct {
	Labels      map[string]string `json:"matchLabels,omitempty"`
	Expressions []Requirement     `json:"matchExpressions,omitempty"`
}

// Requirement is one expression of a selector.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // In, NotIn, Exists or DoesNotExist
	Values   []string `json:"values,omitempty"`
}

// Chooses reports whether labels match the selector; nil matches none.
func (s *LabelSelector) Chooses(labels map[string]string) bool {
	if s == nil {
		return false
	}
	for k, v := range s.Labels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, r := range s.Expressions {
		have, ok := labels[r.Key]
		in := ok && slices.Contains(r.Values, have)
		switch r.Operator {
		case "In":
			ok = in
		case "NotIn":
			ok = !in
		case "Exists":
		case "DoesNotExist":
			ok = !ok
		default:
			return false // an unknown operator matches nothing
		}
		if !ok {
			return false
		}
	}
	return true
}

// Lease is a coordination.k8s.io Lease.
type Lease struct {
	Meta Meta `json:"metadata"`
}

// Workload has the fields of a Deployment, ReplicaSet, StatefulSet or
// ReplicationController that concern its number of pods.
type Workload struct {
	Meta Meta `json:"metadata"`
	Spec struct {
		Replicas *int `json:"replicas"` // nil: 1
		// Strategy is a Deployment's.
		Strategy struct {
			Type    string `json:"type"` // Recreate or RollingUpdate
			Rolling struct {
				MaxSurge any `json:"maxSurge"` // a number, or a percentage such as "25%"
			} `json:"rollingUpdate"`
		} `json:"strategy"`
	} `json:"spec"`
	Status struct {
		Replicas int `json:"replicas"`
		Updated  int `json:"updatedReplicas"` // a Deployment's pods of its newest template
	} `json:"status"`
}

// Replicas returns the desired number of pods.
func (w Workload) Replicas() int {
	if w.Spec.Replicas == nil {
		return 1
	}
	return *w.Spec.Replicas
}

// Autoscaler is a HorizontalPodAutoscaler.
type Autoscaler struct {
	Meta Meta `json:"metadata"`
	Spec struct {
		Target Owner `json:"scaleTargetRef"` // without a uid
	} `json:"spec"`
}
