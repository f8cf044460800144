package provision

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/secret"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

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
	if h := f.ExistingPV; h != nil && !f.Outstanding && (h.Spec.ClaimRef == nil || h.Spec.ClaimRef.UID != f.Claim.UID) {
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
