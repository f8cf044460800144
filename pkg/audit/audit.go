package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// VolumeLister is the driver's ListVolumes (CSI specification, section "ListVolumes").
type VolumeLister interface {
	ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error)
}

// Config describes an audit. All fields are required unless they say otherwise.
type Config struct {
	// Driver is the driver's name; InTree is the in-tree plugin that it replaces, "" for none.
	Driver, InTree string
	// Volumes lists the driver's volumes.
	Volumes VolumeLister
	// Client reads PersistentVolumes and claims.
	Client kubernetes.Interface
	// ToCSI returns the CSI form of a PersistentVolume of an in-tree plugin. Nil means that there are none. It must not
	// change its argument.
	ToCSI func(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error)
	// Reachable reports whether the driver that is asked lists the volume of the PersistentVolume at all, which with
	// node deployment depends on the node. Nil means that it lists all of them.
	Reachable func(pv *corev1.PersistentVolume) (bool, error)
	// VolumeNamePrefix and VolumeNameUUIDLength make the name of a claim's volume; see volume.Name.
	VolumeNamePrefix     string
	VolumeNameUUIDLength int
}

// Report is what an audit has found. Its slices are sorted; empty means that nothing was found.
type Report struct {
	// Driver is the driver's name.
	Driver string `json:"driver"`
	// Volumes is how many volumes the driver lists, PersistentVolumes how many of the cluster's are its own.
	Volumes           int `json:"volumes"`
	PersistentVolumes int `json:"persistentVolumes"`
	// UnboundClaims is how many claims of the driver are not bound: the volume of each may exist already.
	UnboundClaims int `json:"unboundClaims"`
	// Unaccounted are volumes whose handle no PersistentVolume has.
	Unaccounted []Volume `json:"unaccountedVolumes"`
	// Missing are PersistentVolumes whose volume the driver does not list.
	Missing []PersistentVolume `json:"missingVolumes"`
}

// Volume is a volume that the driver lists.
type Volume struct {
	ID string `json:"volumeID"`
	// CapacityBytes is zero when the driver does not tell.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// Claim is the unbound claim whose volume name the ID contains, as namespace/name: the volume is being provisioned for it.
	// Empty means that there is none.
	Claim string `json:"claim,omitempty"`
}

// PersistentVolume is one whose volume the driver does not list.
type PersistentVolume struct {
	Name     string `json:"name"`
	VolumeID string `json:"volumeID"`
	// Phase is that of its status.
	Phase corev1.PersistentVolumePhase `json:"phase"`
	// Claim is the claim that it is bound to, as namespace/name; empty for none.
	Claim string `json:"claim,omitempty"`
	// Deleting says that it has a deletion timestamp: its volume may be deleted already.
	Deleting bool `json:"deleting,omitempty"`
}

// Run compares. It blocks until both sides are read, or returns the first error; a side that cannot be read is never
// taken for empty. The memory that it needs grows with the number of PersistentVolumes and of findings.
//
// PersistentVolumes are read twice, before and after the volumes: one that is created or deleted meanwhile is not
// reported. A volume is accounted for by any PersistentVolume with its handle, whatever the phase and the driver's name in
// it: a backend may be served under several names.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	a := &auditor{cfg: cfg, handles: map[string]handle{}, report: &Report{Driver: cfg.Driver, Unaccounted: []Volume{}, Missing: []PersistentVolume{}}}
	if err := a.readHandles(ctx); err != nil {
		return nil, err
	}
	candidates, err := a.readVolumes(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.compare(ctx, candidates); err != nil {
		return nil, err
	}
	if err := a.readClaims(ctx); err != nil {
		return nil, err
	}
	return a.report, nil
}

// handle is what is known of a volume handle.
type handle struct {
	// own says that a PersistentVolume of the driver has it.
	own bool
	// listed says that the driver lists it.
	listed bool
}

type auditor struct {
	cfg     Config
	handles map[string]handle // volume handle → what is known; as of the first reading
	report  *Report
}

// readHandles reads the handles of all PersistentVolumes.
func (a *auditor) readHandles(ctx context.Context) error {
	return eachPV(ctx, a.cfg.Client, func(pv *corev1.PersistentVolume) error {
		id, own, err := a.handleOf(pv)
		if err != nil || id == "" {
			return err
		}
		h := a.handles[id]
		if own {
			a.report.PersistentVolumes++
			h.own = true
		}
		a.handles[id] = h
		return nil
	})
}

// handleOf returns the volume handle of a PersistentVolume, "" when it has none, and whether the volume is one that the
// driver must list.
func (a *auditor) handleOf(pv *corev1.PersistentVolume) (id string, own bool, err error) {
	asCSI := pv
	if pv.Spec.CSI == nil {
		if a.cfg.ToCSI == nil {
			return "", false, nil
		}
		if asCSI, err = a.cfg.ToCSI(pv); err != nil || asCSI.Spec.CSI == nil {
			return "", false, nil //nolint:nilerr // not the plugin's that the driver replaces
		}
	}
	source := asCSI.Spec.CSI
	if source.Driver != a.cfg.Driver {
		return source.VolumeHandle, false, nil
	}
	own = true
	if a.cfg.Reachable != nil {
		if own, err = a.cfg.Reachable(asCSI); err != nil {
			return "", false, fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
		}
	}
	return source.VolumeHandle, own, nil
}

// readVolumes reads the driver's volumes and returns those whose handle no PersistentVolume had before.
func (a *auditor) readVolumes(ctx context.Context) (map[string]int64, error) {
	for range maxRestarts {
		a.report.Volumes = 0
		candidates := map[string]int64{}
		err := eachVolume(ctx, a.cfg.Volumes, func(v *csi.Volume) {
			a.report.Volumes++
			id := v.GetVolumeId()
			if h, known := a.handles[id]; known {
				h.listed = true
				a.handles[id] = h
			} else {
				candidates[id] = v.GetCapacityBytes()
			}
		})
		if !errors.Is(err, errTokenExpired) {
			return candidates, err
		}
	}
	return nil, fmt.Errorf("%w, after %d attempts", errTokenExpired, maxRestarts)
}

// compare reads the PersistentVolumes again and reports what still holds.
func (a *auditor) compare(ctx context.Context, candidates map[string]int64) error {
	err := eachPV(ctx, a.cfg.Client, func(pv *corev1.PersistentVolume) error {
		id, own, err := a.handleOf(pv)
		if err != nil || id == "" {
			return err
		}
		delete(candidates, id) // created meanwhile
		if h, before := a.handles[id]; own && before && h.own && !h.listed {
			a.report.Missing = append(a.report.Missing, missing(pv, id))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id, size := range candidates {
		a.report.Unaccounted = append(a.report.Unaccounted, Volume{ID: id, CapacityBytes: size})
	}
	a.report.sort()
	return nil
}

func missing(pv *corev1.PersistentVolume, id string) PersistentVolume {
	found := PersistentVolume{Name: pv.Name, VolumeID: id, Phase: pv.Status.Phase, Deleting: pv.DeletionTimestamp != nil}
	if ref := pv.Spec.ClaimRef; ref != nil {
		found.Claim = ref.Namespace + "/" + ref.Name
	}
	return found
}

// readClaims counts the unbound claims of the driver, and names the one that a volume is being provisioned for, where
// the volume's ID contains its name.
func (a *auditor) readClaims(ctx context.Context) error {
	unbound := map[string]string{} // volume name → claim
	err := eachClaim(ctx, a.cfg.Client, func(claim *corev1.PersistentVolumeClaim) error {
		if claim.Spec.VolumeName != "" || !volume.OwnedClaim(claim, a.cfg.Driver, a.cfg.InTree) {
			return nil
		}
		name, err := volume.Name(a.cfg.VolumeNamePrefix, a.cfg.VolumeNameUUIDLength, claim.UID)
		if err != nil {
			return fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		a.report.UnboundClaims++
		unbound[name] = claim.Namespace + "/" + claim.Name
		return nil
	})
	if err != nil {
		return err
	}
	for i := range a.report.Unaccounted {
		v := &a.report.Unaccounted[i]
		v.Claim = claimIn(v.ID, a.cfg.VolumeNamePrefix, unbound)
	}
	return nil
}
