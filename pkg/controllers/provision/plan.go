package provision

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// Plan is what one attempt will do. It holds no secret value and no reference to anything that is changed
// later, so that it can be printed, compared, and sent again unchanged while a create is unanswered.
type Plan struct {
	// Claim is who the volume is for. Read-only.
	Claim *corev1.PersistentVolumeClaim
	// Class is the class as the cluster knows it, not translated. Read-only.
	Class *storagev1.StorageClass
	// Request is the CreateVolume request without its secrets. Its name is also the PersistentVolume's.
	Request *csi.CreateVolumeRequest
	// Secrets are references; the provisioner's is read when the call is made.
	Secrets volume.SecretRefs
	// Source is protected by a finalizer before the call; zero means that there is none.
	Source source.Reference
	// SourceUID is the UID of the source as it was read; empty without one.
	SourceUID types.UID
	// FSType and VACName are what the PersistentVolume will say; empty means nothing.
	FSType, VACName string
	// Labels and Annotations are what the PersistentVolume takes over from the claim; nil for nothing.
	Labels, Annotations map[string]string
	// SelectedNode is the node that the request was made for; empty means none.
	SelectedNode string
	// Reschedulable says that somebody may choose another node when this one has no room.
	Reschedulable bool
	// Translated says that the PersistentVolume must be translated to its in-tree form.
	Translated bool
	// Identity and PublishReadonly are what the PersistentVolume will say of the process and of --controller-publish-readonly.
	Identity        string
	PublishReadonly bool
	// VAC is the VolumeAttributesClass as read, nil if none. Read-only.
	VAC *storagev1.VolumeAttributesClass
}

// MakePlan decides what to do for the claim. Same facts, same plan; the facts are not changed. An error
// carries its outcome: Failed when only a change of the objects helps, Reschedule when the selected node is
// gone, NotOurs for a populator's claim, Unchanged when trying again may help. When several checks fail, the
// first in the order of this function is reported.
func MakePlan(f Facts, s Settings) (*Plan, error) {
	p, _, err := runSteps(f, s)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// runSteps makes the plan and also tells how many steps passed: all of them, or those before the one that failed.
func runSteps(f Facts, s Settings) (p *Plan, passed int, err error) {
	p = newPlan(f, s)
	for i := range steps {
		if err := steps[i].do(f, s, p); err != nil {
			return p, i, because(steps[i].refusal, err)
		}
	}
	return p, len(steps), nil
}

// newPlan returns the plan before its first step.
func newPlan(f Facts, s Settings) *Plan {
	return &Plan{
		Claim: f.Claim, Class: f.Class, Source: f.Source, SelectedNode: f.SelectedNode, Request: &csi.CreateVolumeRequest{},
		Identity: s.Identity, PublishReadonly: s.PublishReadonly,
	}
}

// step is one check, and what the plan gains by it. The name is for people, refusal for the metric of failures.
type step struct {
	name    string
	refusal reason
	do      func(f Facts, s Settings, p *Plan) error
}

// steps in the order of the contract: it decides which message a user sees first.
var steps = []step{
	{"the data source may be used", reasonSource, sourceAllowed},
	{"the class can be read as a CSI class", reasonRefused, classTranslated},
	{"the VolumeAttributesClass, if any, is known", reasonAttributes, attributesClassName},
	{"the driver has what the claim needs", reasonRefused, capable},
	{"the claim has no selector", reasonRefused, noSelector},
	{"the volume has a name of its own", reasonRefused, named},
	{"file system, volume mode and access modes fit", reasonRefused, described},
	{"the size is known", reasonRefused, sized},
	{"the content of the data source can be used", reasonSource, contentFound},
	{"there is a place for the volume", reasonPlace, placed},
	{"the secrets can be told", reasonRefused, secretsResolved},
	{"the parameters can be passed on", reasonRefused, parametersStripped},
	{"the claim's labels and annotations can be passed on", reasonRefused, metadataTaken},
	{"the VolumeAttributesClass, if any, can be used", reasonAttributes, attributesRead},
}

func failed(format string, args ...any) error {
	return outcome.With(outcome.Failed, fmt.Errorf(format, args...))
}
