package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/text"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// trimmer decides what of claims and PersistentVolumes is kept. Claims that wait for our driver are kept whole but for
// what nobody reads; all others shrink to a few words, because a cluster may have tens of thousands of them.
type trimmer struct {
	driver, inTree string
	lastApplied    bool                                  // keep wellknown.AnnLastApplied of claims that are kept whole
	handle         func(*corev1.PersistentVolume) string // see InformersConfig.Handle

	strings *interner[string, string]
	shapes  *interner[claimShapeKey, *claimShape]
	maps    *interner[string, map[string]string]
}

func newTrimmer(driver, inTree string) *trimmer {
	return &trimmer{
		driver: driver, inTree: inTree,
		handle: func(pv *corev1.PersistentVolume) string {
			if csi := pv.Spec.CSI; csi != nil && csi.Driver == driver {
				return csi.VolumeHandle
			}
			return ""
		},
		strings: newInterner[string, string](func(s string) int { return len(s) }),
		shapes:  newInterner[claimShapeKey, *claimShape](claimShapeKey.size),
		maps:    newInterner[string, map[string]string](func(s string) int { return len(s) }),
	}
}

func (t *trimmer) shared(s string) string {
	return t.strings.get(s, func() string { return strings.Clone(s) })
}

// ours says whether name is one that this driver answers to.
func (t *trimmer) ours(name string) bool { return name != "" && (name == t.driver || name == t.inTree) }

// claim is the transform of the claim cache.
func (t *trimmer) claim(obj any) (any, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return obj, nil // trimmed before, or a tombstone
	}
	own := t.ownClaim(claim)
	if own && !served(claim) {
		selected := selection(claim)
		t.trimMeta(&claim.ObjectMeta)
		if !t.lastApplied {
			delete(claim.Annotations, wellknown.AnnLastApplied)
		}
		claim.ManagedFields = selected
		claim.Status.Conditions = nil
		return claim, nil
	}
	short := t.shortClaim(claim)
	short.own = own
	return short, nil
}

// served says that a claim has its volume for good and carries nothing of a pre-release.
func served(claim *corev1.PersistentVolumeClaim) bool {
	_, marked := claim.Annotations[wellknown.AnnProvisioningInProgress]
	return claim.Spec.VolumeName != "" && claim.Status.Phase == corev1.ClaimBound && !marked &&
		!slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

// ownClaim is true for claims that may be work of this driver: its name is in one of the annotations that decide,
// or it carries the finalizer of a pre-release.
func (t *trimmer) ownClaim(claim *corev1.PersistentVolumeClaim) bool {
	return t.ours(claim.Annotations[wellknown.AnnStorageProvisioner]) ||
		t.ours(claim.Annotations[wellknown.AnnBetaStorageProvisioner]) ||
		t.ours(claim.Annotations[wellknown.AnnMigratedTo]) ||
		slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

func (t *trimmer) trimMeta(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	meta.Namespace = t.shared(meta.Namespace)
}

// shortClaim is what is kept of a claim that another driver serves, or that ours has served.
type shortClaim struct {
	namespace, name, uid, resourceVersion, volumeName string

	own bool // of our driver

	*claimShape             // shared by all claims that look alike
	extra       *claimExtra // nil for most
}

// claimShape is what many claims have in common. It is never changed.
type claimShape struct {
	annotations map[string]string
	class       *string
	mode        *corev1.PersistentVolumeMode
	requests    corev1.ResourceList
	phase       corev1.PersistentVolumeClaimPhase
}

type claimShapeKey struct {
	ga, beta, migrated, betaClass, class, mode, request, phase string
}

func (k claimShapeKey) size() int {
	return len(k.ga) + len(k.beta) + len(k.migrated) + len(k.betaClass) + len(k.class) + len(k.mode) + len(k.request) + len(k.phase)
}

// maxNameBytes is the longest name of an object. What is longer names nothing, also when it was cut.
const maxNameBytes = 253

// claimExtra is what makes a served or foreign claim interesting: it goes away, it is protected, or it is a copy of something.
type claimExtra struct {
	deletion      *metav1.Time
	finalizers    []string // ours only
	dataSource    *corev1.TypedLocalObjectReference
	dataSourceRef *corev1.TypedObjectReference
}

// absent marks a value that is not there in a key, where "" is a value of its own.
const absent = "\x00"

func (t *trimmer) shortClaim(claim *corev1.PersistentVolumeClaim) *shortClaim {
	f := &shortClaim{
		namespace: t.shared(claim.Namespace), name: claim.Name, uid: string(claim.UID),
		resourceVersion: claim.ResourceVersion, volumeName: claim.Spec.VolumeName,
		claimShape: t.shape(claim),
	}
	// Most volumes are named after the claim's UID; then the UID needs no memory of its own.
	if strings.HasSuffix(f.volumeName, f.uid) {
		f.uid = f.volumeName[len(f.volumeName)-len(f.uid):]
	}
	extra := claimExtra{
		deletion: claim.DeletionTimestamp, dataSource: claim.Spec.DataSource, dataSourceRef: claim.Spec.DataSourceRef,
	}
	for _, finalizer := range claim.Finalizers {
		if finalizer == wellknown.FinalizerCloneSource || finalizer == wellknown.FinalizerProvisioningInProgress {
			extra.finalizers = append(extra.finalizers, t.shared(finalizer))
		}
	}
	if extra.deletion != nil || extra.dataSource != nil || extra.dataSourceRef != nil || extra.finalizers != nil {
		f.extra = &extra
	}
	return f
}

func (t *trimmer) shape(claim *corev1.PersistentVolumeClaim) *claimShape {
	annotation := func(key string) string {
		if value, ok := claim.Annotations[key]; ok {
			return text.Cut(value, maxNameBytes)
		}
		return absent
	}
	request, asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	key := claimShapeKey{
		ga: annotation(wellknown.AnnStorageProvisioner), beta: annotation(wellknown.AnnBetaStorageProvisioner),
		migrated: annotation(wellknown.AnnMigratedTo), betaClass: annotation(wellknown.AnnBetaStorageClass),
		class: orAbsent(claim.Spec.StorageClassName), mode: string(orAbsent(claim.Spec.VolumeMode)),
		request: absent, phase: string(claim.Status.Phase),
	}
	if asked {
		key.request = request.String()
	}
	return t.shapes.get(key, func() *claimShape { return key.shape(request) })
}

func orAbsent[S ~string](value *S) S {
	if value == nil {
		return absent
	}
	return *value
}

func (k claimShapeKey) shape(request resource.Quantity) *claimShape {
	s := &claimShape{
		annotations: map[string]string{},
		phase:       corev1.PersistentVolumeClaimPhase(k.phase),
	}
	if k.request != absent {
		s.requests = corev1.ResourceList{corev1.ResourceStorage: request.DeepCopy()}
	}
	for annotation, value := range map[string]string{
		wellknown.AnnStorageProvisioner: k.ga, wellknown.AnnBetaStorageProvisioner: k.beta,
		wellknown.AnnMigratedTo: k.migrated, wellknown.AnnBetaStorageClass: k.betaClass,
	} {
		if value != absent {
			s.annotations[annotation] = value
		}
	}
	if k.class != absent {
		s.class = &k.class
	}
	if k.mode != absent {
		mode := corev1.PersistentVolumeMode(k.mode)
		s.mode = &mode
	}
	return s
}

// GetObjectMeta makes a short claim an object to the informer.
func (f *shortClaim) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{
		Namespace: f.namespace, Name: f.name, UID: types.UID(f.uid), ResourceVersion: f.resourceVersion,
	}
}

// claim returns f as the rest of the program knows claims. Its maps and pointers are shared.
func (f *shortClaim) claim() *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: f.name, UID: types.UID(f.uid), ResourceVersion: f.resourceVersion,
			Annotations: f.annotations,
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: f.volumeName, StorageClassName: f.class, VolumeMode: f.mode,
			Resources: corev1.VolumeResourceRequirements{Requests: f.requests},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: f.phase},
	}
	if f.extra != nil {
		claim.DeletionTimestamp, claim.Finalizers = f.extra.deletion, f.extra.finalizers
		claim.Spec.DataSource, claim.Spec.DataSourceRef = f.extra.dataSource, f.extra.dataSourceRef
	}
	return claim
}

// asClaim returns what the cache holds as a claim; nil for anything else.
func asClaim(obj any) *corev1.PersistentVolumeClaim {
	switch obj := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return obj
	case *shortClaim:
		return obj.claim()
	}
	return nil
}

// plain says that obj is a foreign claim nobody has a reason to look at.
func plain(obj any) bool {
	f, ok := obj.(*shortClaim)
	return ok && f.extra == nil && !f.own
}
