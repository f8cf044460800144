package operations

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// Version is the format that this program writes. It reads this one and the one before it. A field that is added
// needs a new version: an older program must not replay a request of which it knows only a part.
const Version = 1

// Object names one object. An empty namespace is for what has none.
type Object struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// Source is the object that the volume is filled from. The zero value is for an empty volume.
type Source struct {
	Group     string    `json:"group,omitempty"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

// PersistentVolume is what the PersistentVolume will say beyond the request and the driver's answer. Empty fields say
// nothing.
type PersistentVolume struct {
	Provisioner     string                                `json:"provisioner"`
	Identity        string                                `json:"identity,omitempty"`
	Translated      bool                                  `json:"translated,omitempty"`
	PublishReadonly bool                                  `json:"publishReadonly,omitempty"`
	AccessModes     []corev1.PersistentVolumeAccessMode   `json:"accessModes,omitempty"`
	VolumeMode      *corev1.PersistentVolumeMode          `json:"volumeMode,omitempty"`
	FSType          string                                `json:"fsType,omitempty"`
	ReclaimPolicy   *corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy,omitempty"`
	MountOptions    []string                              `json:"mountOptions,omitempty"`
	VACName         string                                `json:"volumeAttributesClassName,omitempty"`
	Labels          map[string]string                     `json:"labels,omitempty"`
	Annotations     map[string]string                     `json:"annotations,omitempty"`
}

// Operation is everything that another process needs to send the same CreateVolume request again and to save what
// comes of it, if the claim and the class are gone or changed by then. It holds no secret value.
type Operation struct {
	// Driver is the CSI driver; Node the node of its instance, empty unless in node deployment.
	Driver string `json:"driver"`
	Node   string `json:"node,omitempty"`
	// Claim is who the volume is for, Class its class.
	Claim Object `json:"claim"`
	Class Object `json:"class"`
	// VolumeName is the name in the request and of the PersistentVolume.
	VolumeName string `json:"volumeName"`
	// Request is the CreateVolume request. Its secrets are never encoded.
	Request *csi.CreateVolumeRequest `json:"-"`
	// TopologyReduced says that the requirement was too long: the request has only its first preferred term, and
	// whoever sends it again asks for the topology of the cluster with that term first.
	TopologyReduced bool `json:"topologyReduced,omitempty"`
	// Secrets are references, nil for none.
	Secrets volume.SecretRefs `json:"-"`
	Source  Source            `json:"source,omitzero"`
	// SelectedNode is the node that the request was made for, empty for none. Reschedulable says that somebody may
	// choose another one.
	SelectedNode  string `json:"selectedNode,omitempty"`
	Reschedulable bool   `json:"reschedulable,omitempty"`
	// PersistentVolume is what it will say.
	PersistentVolume PersistentVolume `json:"persistentVolume"`
}
