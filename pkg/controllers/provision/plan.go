package provision

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/secret"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
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

func sourceAllowed(f Facts, s Settings, _ *Plan) error {
	if f.SourceErr != nil {
		return outcome.With(outcome.Failed, f.SourceErr)
	}
	if f.Source.NeedsGrant(f.Claim.Namespace) {
		if f.GrantErr != nil {
			return failed("read ReferenceGrants in namespace %q: %w", f.Source.Namespace, f.GrantErr)
		}
		if !f.Granted {
			return failed("%s %s/%s is not granted to claim %s/%s by any ReferenceGrant in namespace %q",
				f.Source.KindName, f.Source.Namespace, f.Source.Name, f.Claim.Namespace, f.Claim.Name, f.Source.Namespace)
		}
	}
	if f.Source.Kind == source.Populator {
		return outcome.With(outcome.NotOurs, fmt.Errorf("data source of kind %q is served by a populator", f.Source.KindName))
	}
	return nil
}

func classTranslated(f Facts, s Settings, p *Plan) error {
	if f.TranslateErr != nil {
		return failed("storage class translation of %q from %s: %w", f.Class.Name, s.InTree, f.TranslateErr)
	}
	p.Translated = f.Translated != f.Class
	return nil
}

func attributesClassName(f Facts, _ Settings, p *Plan) error {
	if f.WantsVAC && f.Claim.Spec.VolumeAttributesClassName != nil {
		p.VACName = *f.Claim.Spec.VolumeAttributesClassName
	}
	return nil
}

// capable names the first missing capability.
func capable(f Facts, s Settings, p *Plan) error {
	has := s.Capabilities
	for _, need := range []struct {
		needed, there bool
		name          string
	}{
		{true, has.ControllerService, "CONTROLLER_SERVICE"},
		{true, has.CreateDeleteVolume, "CREATE_DELETE_VOLUME"},
		{f.Source.Kind == source.Snapshot, has.Snapshot, "CREATE_DELETE_SNAPSHOT"},
		{f.Source.Kind == source.Claim, has.Clone, "CLONE_VOLUME"},
		{p.VACName != "", has.Modify, "MODIFY_VOLUME"},
	} {
		if need.needed && !need.there {
			return failed("driver %s lacks the capability %s", s.Driver, need.name)
		}
	}
	return nil
}

func noSelector(f Facts, _ Settings, _ *Plan) error {
	if f.Claim.Spec.Selector != nil {
		return failed("claim selector is not supported by dynamic provisioning: remove spec.selector or bind to an existing PersistentVolume")
	}
	return nil
}

func named(f Facts, s Settings, p *Plan) error {
	name, err := s.volumeName(f.Claim.UID)
	if err != nil {
		return outcome.With(outcome.Failed, err)
	}
	if h := f.Holder; h != nil && !f.Outstanding && (h.Spec.ClaimRef == nil || h.Spec.ClaimRef.UID != f.Claim.UID) {
		return failed("the volume name %q is taken by a PersistentVolume of another claim: raise --volume-name-uuid-length", name)
	}
	p.Request.Name = name
	return nil
}

func described(f Facts, s Settings, p *Plan) error {
	fsType, _, err := volume.FSType(f.Translated.Parameters, s.DefaultFSType)
	if err != nil {
		return outcome.With(outcome.Failed, err)
	}
	p.FSType = fsType
	capabilities, err := volume.Capabilities(volume.CapabilityInput{
		Claim:                 f.Claim,
		FSType:                fsType,
		MountOptions:          f.Translated.MountOptions,
		SingleNodeMultiWriter: s.Capabilities.SingleNodeMultiWriter,
	})
	if err != nil {
		return outcome.With(outcome.Failed, err)
	}
	p.Request.VolumeCapabilities = capabilities
	return nil
}

func sized(f Facts, _ Settings, p *Plan) error {
	p.Request.CapacityRange = &csi.CapacityRange{RequiredBytes: volume.RequestBytes(f.Claim)}
	return nil
}

func contentFound(f Facts, s Settings, p *Plan) error {
	// The driver of a source is compared with the class's provisioner; a translated class names the plugin there.
	driver := f.Class.Provisioner
	if p.Translated {
		driver = s.Driver
	}
	var content source.Content
	var err error
	switch f.Source.Kind {
	case source.None, source.Populator:
		return nil
	case source.Snapshot:
		if f.Snapshot != nil {
			p.SourceUID = f.Snapshot.UID
		}
		content, err = source.CheckSnapshot(source.SnapshotFacts{
			Claim: f.Claim, ClassName: f.Class.Name, DriverName: driver, Source: f.Source, Snapshot: f.Snapshot, Content: f.Content,
			ReadErr: f.ContentErr, PreventModeConversion: s.PreventModeConversion, GrowToSourceSize: s.GrowToSourceSize,
		})
	case source.Claim:
		if f.SourceClaim != nil {
			p.SourceUID = f.SourceClaim.UID
		}
		content, err = source.CheckClone(source.CloneFacts{
			Claim: f.Claim, DriverName: driver, Reference: f.Source, Source: f.SourceClaim, SourcePV: f.SourcePV,
			ReadErr: f.ContentErr, OutstandingCreate: f.Outstanding, GrowToSourceSize: s.GrowToSourceSize,
		})
	}
	if err != nil {
		return outcome.With(outcome.Unchanged, err)
	}
	p.Request.VolumeContentSource = content.VolumeContentSource
	p.Request.CapacityRange.RequiredBytes = max(p.Request.GetCapacityRange().GetRequiredBytes(), content.MinBytes)
	return nil
}

func placed(f Facts, s Settings, p *Plan) error {
	if !s.Capabilities.Topology {
		return nil
	}
	if f.RequirementErr != nil {
		o, why := outcome.Unchanged, reasonPlace
		if errors.Is(f.RequirementErr, topology.ErrNodeGone) {
			why = reasonNodeGone
			if !f.Outstanding {
				o = outcome.Reschedule
			}
		}
		return because(why, outcome.With(o, fmt.Errorf("generate accessibility requirements: %w", f.RequirementErr)))
	}
	p.Request.AccessibilityRequirements = f.Requirement
	p.Reschedulable = f.SelectedNode != ""
	return nil
}

func secretsResolved(f Facts, _ Settings, p *Plan) error {
	refs, err := volume.ResolveSecrets(f.Translated.Parameters, secret.Names{
		PVName: p.Request.GetName(), ClaimName: f.Claim.Name, ClaimNamespace: f.Claim.Namespace, ClaimAnnotations: f.Claim.Annotations,
	})
	p.Secrets = refs
	return err
}

func parametersStripped(f Facts, s Settings, p *Plan) error {
	parameters, err := volume.Parameters(f.Translated.Parameters)
	if err != nil {
		return failed("stripping the reserved parameters of StorageClass %q: %w", f.Class.Name, err)
	}
	if s.ExtraCreateMetadata {
		volume.AddMetadata(parameters, f.Claim, p.Request.GetName())
	}
	p.Request.Parameters = parameters
	return nil
}

func metadataTaken(f Facts, s Settings, p *Plan) (err error) {
	if err := volume.AddClaimMetadata(p.Request.GetParameters(), f.Claim, s.CreateMetadata); err != nil {
		return err
	}
	p.Labels, p.Annotations, err = volume.CopiedToPV(f.Claim, s.CopyToPV)
	return err
}

func attributesRead(f Facts, s Settings, p *Plan) error {
	if p.VACName == "" {
		return nil
	}
	if f.VACErr != nil {
		return fmt.Errorf("read VolumeAttributesClass %q: %w", p.VACName, f.VACErr)
	}
	if f.VAC.DriverName != s.Driver {
		return failed("VolumeAttributesClass %q is for driver %q, not for %q", p.VACName, f.VAC.DriverName, s.Driver)
	}
	p.VAC = f.VAC
	p.Request.MutableParameters = f.VAC.Parameters
	return nil
}
