package cluster

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const (
	testDriver = "driver.test"
	testInTree = "kubernetes.io/in-tree"
)

// fullClaim is a claim with everything that a claim can have, served by provisioner.
func fullClaim(provisioner string) *corev1.PersistentVolumeClaim {
	class, mode, vac, group, namespace := "fast", corev1.PersistentVolumeBlock, "gold", wellknown.GroupSnapshot, "elsewhere"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "c", UID: "a1b2", ResourceVersion: "7", Generation: 3,
			Labels: map[string]string{"app": "x"},
			Annotations: map[string]string{
				wellknown.AnnStorageProvisioner: provisioner, wellknown.AnnBetaStorageProvisioner: provisioner,
				wellknown.AnnBetaStorageClass: "slow", wellknown.AnnSelectedNode: "n", wellknown.AnnLastApplied: strings.Repeat("x", 1000),
				"users": "data",
			},
			DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
			Finalizers:        []string{"kubernetes.io/pvc-protection", wellknown.FinalizerCloneSource},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "m"}},
			OwnerReferences:   []metav1.OwnerReference{{Name: "o"}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pvc-a1b2",
			StorageClassName: &class, VolumeMode: &mode, VolumeAttributesClassName: &vac,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1536Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			},
			DataSource:    &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: wellknown.KindSnapshot, Name: "s"},
			DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group, Kind: wellknown.KindSnapshot, Name: "s", Namespace: &namespace},
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			Conditions: []corev1.PersistentVolumeClaimCondition{{Message: "long"}},
		},
	}
}

func trimmedClaim(t *testing.T, claim *corev1.PersistentVolumeClaim) any {
	t.Helper()
	trim := newTrimmer(testDriver, testInTree)
	once, err := trim.claim(claim.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	// The informer trims what it streams once more when it takes it over.
	twice, err := trim.claim(once)
	if err != nil || twice != once {
		t.Fatalf("trimming again gives %v, %v, want the same object", twice, err)
	}
	return once
}

func TestAForeignClaimKeepsOnlyWhatOthersNeed(t *testing.T) {
	t.Parallel()
	full := fullClaim("other.test")
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "c", UID: "a1b2", ResourceVersion: "7",
			Annotations: map[string]string{
				wellknown.AnnStorageProvisioner: "other.test", wellknown.AnnBetaStorageProvisioner: "other.test",
				wellknown.AnnBetaStorageClass: "slow",
			},
			DeletionTimestamp: full.DeletionTimestamp, Finalizers: []string{wellknown.FinalizerCloneSource},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pvc-a1b2", StorageClassName: full.Spec.StorageClassName, VolumeMode: full.Spec.VolumeMode,
			Resources:  corev1.VolumeResourceRequirements{Requests: full.Spec.Resources.Requests},
			DataSource: full.Spec.DataSource, DataSourceRef: full.Spec.DataSourceRef,
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	got := trimmedClaim(t, full)
	if diff := cmp.Diff(want, asClaim(got)); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if key, err := cache.MetaNamespaceKeyFunc(got); err != nil || key != "ns/c" {
		t.Errorf("key %q, %v", key, err)
	}
}

func TestValuesThatAreNotThereStayAway(t *testing.T) {
	t.Parallel()
	empty := ""
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"nothing at all":          {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}},
		"a class that is empty":   {Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &empty}},
		"an annotation, empty":    {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnStorageProvisioner: ""}}},
		"a volume without an UID": {Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := claim.DeepCopy()
			if want.Annotations == nil {
				want.Annotations = map[string]string{}
			}
			if diff := cmp.Diff(want, asClaim(trimmedClaim(t, claim))); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhichClaimsAreKeptWhole(t *testing.T) {
	t.Parallel()
	annotated := func(key, value string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value, "users": "data"}}}
	}
	marked := annotated(wellknown.AnnStorageProvisioner, "other.test")
	marked.Finalizers = []string{wellknown.FinalizerProvisioningInProgress}
	for name, tc := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		"ours":                           {annotated(wellknown.AnnStorageProvisioner, testDriver), true},
		"ours by the older annotation":   {annotated(wellknown.AnnBetaStorageProvisioner, testDriver), true},
		"of the in-tree plugin":          {annotated(wellknown.AnnStorageProvisioner, testInTree), true},
		"migrated to us":                 {annotated(wellknown.AnnMigratedTo, testDriver), true},
		"a create was begun for it":      {marked, true},
		"of another driver":              {annotated(wellknown.AnnStorageProvisioner, "other.test"), false},
		"migrated to another driver":     {annotated(wellknown.AnnMigratedTo, "other.test"), false},
		"not claimed by any provisioner": {annotated("x", "y"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, whole := trimmedClaim(t, tc.claim).(*corev1.PersistentVolumeClaim)
			if whole != tc.want {
				t.Errorf("kept whole: %v, want %v", whole, tc.want)
			}
		})
	}
	if _, whole := mustTrim(t, newTrimmer(testDriver, "").claim, annotated(wellknown.AnnStorageProvisioner, "")).(*corev1.PersistentVolumeClaim); whole {
		t.Error("without an in-tree plugin, an empty provisioner is ours")
	}
}

func mustTrim(t *testing.T, trim cache.TransformFunc, obj any) any {
	t.Helper()
	trimmed, err := trim(obj)
	if err != nil {
		t.Fatal(err)
	}
	return trimmed
}

// A claim that may be work loses only what nobody reads.
func TestOurClaimIsWholeUntilItIsBound(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"has no volume":       func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "" },
		"is not bound yet":    func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimPending },
		"has lost its volume": func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimLost },
		"has the annotation of a pre-release": func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations[wellknown.AnnProvisioningInProgress] = "{}"
		},
		"has the finalizer of a pre-release": func(claim *corev1.PersistentVolumeClaim) {
			claim.Finalizers = append(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := fullClaim(testDriver)
			change(claim)
			want := claim.DeepCopy()
			want.ManagedFields, want.Status.Conditions = nil, nil
			delete(want.Annotations, wellknown.AnnLastApplied)
			if diff := cmp.Diff(want, trimmedClaim(t, claim)); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

// kubectl's copy of the object is kept where somebody asks for it, of claims that wait and of no others.
func TestTheLastAppliedConfigurationIsKeptOnRequest(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(testDriver, testInTree)
	trim.lastApplied = true
	waiting := fullClaim(testDriver)
	waiting.Spec.VolumeName, waiting.Status.Phase = "", corev1.ClaimPending
	for name, tc := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		"a claim that waits":       {waiting, waiting.Annotations[wellknown.AnnLastApplied]},
		"a claim that is bound":    {fullClaim(testDriver), ""},
		"a claim of somebody else": {fullClaim("other"), ""},
	} {
		if got := asClaim(mustTrim(t, trim.claim, tc.claim)).Annotations[wellknown.AnnLastApplied]; got != tc.want {
			t.Errorf("%s has %q, want %q", name, got, tc.want)
		}
	}
	if pv := asPV(mustTrim(t, trim.pv, fullPV(testDriver))); pv.Annotations[wellknown.AnnLastApplied] != "" {
		t.Error("a PersistentVolume has it, too")
	}
}

// A bound claim shrinks like that of another driver, but handlers and the index of UIDs still see it.
func TestOurBoundClaimIsShortAndSeen(t *testing.T) {
	t.Parallel()
	claim := fullClaim(testDriver)
	claim.DeletionTimestamp, claim.Finalizers, claim.Spec.DataSource, claim.Spec.DataSourceRef = nil, nil, nil, nil
	got := trimmedClaim(t, claim)
	if _, short := got.(*shortClaim); !short {
		t.Errorf("kept as %T, want a short claim", got)
	}
	if plain(got) {
		t.Error("nobody would be told of its changes")
	}
	if uids, err := claimUIDs(got); err != nil || !slices.Equal(uids, []string{"a1b2"}) {
		t.Errorf("UIDs %q, %v, want its own", uids, err)
	}
	kept := asClaim(got)
	if kept.Spec.VolumeName != "pvc-a1b2" || kept.Annotations[wellknown.AnnStorageProvisioner] != testDriver || kept.Status.Phase != corev1.ClaimBound {
		t.Errorf("volume, provisioner and phase are not those of the claim: %+v", kept)
	}
}

func fullPV(driver string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-a1b2", UID: "u", ResourceVersion: "7",
			Annotations: map[string]string{
				wellknown.AnnProvisionedBy: driver, wellknown.AnnDeletionSecretName: "s", wellknown.AnnDeletionSecretNamespace: "",
				wellknown.AnnLastApplied: "x", "users": "data",
			},
			Labels:        map[string]string{"users": "data"},
			Finalizers:    []string{wellknown.FinalizerPV},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, MountOptions: []string{"noatime"},
			StorageClassName: "fast",
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
			}}}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "h", FSType: "ext4",
				VolumeAttributes:   map[string]string{"a": "b", wellknown.AttributeIdentity: "1-2-x"},
				NodeStageSecretRef: &corev1.SecretReference{Name: "s", Namespace: "ns"},
			}},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: wellknown.KindClaim, Namespace: "ns", Name: "c", UID: "a1b2", ResourceVersion: "6",
			},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound, LastPhaseTransitionTime: &metav1.Time{Time: time.Unix(1, 0)}},
	}
}

func TestPVs(t *testing.T) {
	t.Parallel()
	own := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-a1b2", UID: "u", ResourceVersion: "7",
			Annotations: map[string]string{wellknown.AnnProvisionedBy: testDriver, wellknown.AnnDeletionSecretName: "s", wellknown.AnnDeletionSecretNamespace: ""},
			Finalizers:  []string{wellknown.FinalizerPV},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: testDriver, VolumeHandle: "h", VolumeAttributes: map[string]string{wellknown.AttributeIdentity: "1-2-x"},
			}},
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: wellknown.KindClaim, Namespace: "ns", Name: "c", UID: "a1b2"},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
			NodeAffinity:                  fullPV("").Spec.NodeAffinity,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	inTree := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnProvisionedBy: testInTree}}}
	migrated := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnMigratedTo: testDriver}}}
	static := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver},
	}}}
	foreign := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-a1b2", UID: "u", ResourceVersion: "7"},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.test"}},
			ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: wellknown.KindClaim, Namespace: "ns", Name: "c", UID: "a1b2"},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for name, tc := range map[string]struct{ in, want *corev1.PersistentVolume }{
		"of ours is kept what its end needs":  {fullPV(testDriver), own},
		"of the in-tree plugin is whole":      {inTree.DeepCopy(), inTree},
		"migrated to us is whole":             {migrated.DeepCopy(), migrated},
		"made by hand for us is whole":        {static.DeepCopy(), static},
		"another driver's is only a name":     {fullPV("other.test"), foreign},
		"one without a claim or driver, too":  {&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}}, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}}},
		"another driver's whose claim is old": {withClaimUID(fullPV("other.test"), "zzzz"), withClaimUID(foreign.DeepCopy(), "zzzz")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trim := newTrimmer(testDriver, testInTree)
			once := mustTrim(t, trim.pv, tc.in)
			if twice := mustTrim(t, trim.pv, once); twice != once {
				t.Error("trimming again gives another object")
			}
			if diff := cmp.Diff(tc.want, asPV(once)); diff != "" {
				t.Errorf("PersistentVolume (-want +got):\n%s", diff)
			}
		})
	}
}

func withClaimUID(pv *corev1.PersistentVolume, uid types.UID) *corev1.PersistentVolume {
	pv.Spec.ClaimRef.UID = uid
	return pv
}

func TestOfAnAttachmentTheVolumeAndTheNodeAreKept(t *testing.T) {
	t.Parallel()
	volume := "pv"
	got := mustTrim(t, newTrimmer(testDriver, "").attachment, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7", Annotations: map[string]string{"x": "y"}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: testDriver, NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"x": "y"}},
	})
	want := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: testDriver, NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attachment (-want +got):\n%s", diff)
	}
}

// A full interner begins anew: what is gone is forgotten, by number and by bytes, and what is too long is never kept.
func TestTheInternerIsBounded(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"many": 1, "large": maxInternedKey, "too large": maxInternedKey + 1} {
		i := newInterner[int, int](func(int) int { return size })
		for n := range 3 * maxInterned {
			if got := i.get(n, func() int { return n }); got != n {
				t.Fatalf("%s: got %d for %d", name, got, n)
			}
			if len(i.values) > maxInterned || len(i.values)*size > maxInternedBytes || i.bytes != len(i.values)*size {
				t.Fatalf("%s: %d values with %d bytes are remembered", name, len(i.values), i.bytes)
			}
		}
		if _, there := i.values[0]; there {
			t.Errorf("%s: the first value is remembered", name)
		}
		if _, there := i.values[3*maxInterned-1]; there != (size <= maxInternedKey) {
			t.Errorf("%s: the last value is remembered: %v", name, there)
		}
	}
}

// Of an annotation of somebody else's claim no more is kept than a name can have.
func TestLongAnnotationsOfOthersAreCut(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(testDriver, "")
	long := strings.Repeat("x", 250<<10)
	claim := claimFrom("a", "c", nil, long)
	claim.Annotations[wellknown.AnnBetaStorageClass] = long
	short := asClaim(mustTrim(t, trim.claim, claim))
	for key, value := range short.Annotations {
		if len(value) != maxNameBytes {
			t.Errorf("%d bytes of %s are kept, want %d", len(value), key, maxNameBytes)
		}
	}
	if len(short.Annotations) != 2 || len(trim.shapes.values) != 1 {
		t.Errorf("%d annotations and %d shapes are kept, want 2 and 1", len(short.Annotations), len(trim.shapes.values))
	}
}

// A claim or PersistentVolume of another driver costs at most 350 bytes, with all that the cache itself needs: 20,000
// of each are 14 MiB.
func TestForeignObjectsAreSmall(t *testing.T) { //nolint:paralleltest // it measures the heap
	const count, limit = 5_000, 350 // bytes an object
	var before, after runtime.MemStats
	trim := newTrimmer(testDriver, "")
	claims := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{indexUID: claimUIDs, indexSource: claimSources})
	pvs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	runtime.GC()
	runtime.ReadMemStats(&before)
	for n := range count {
		uid := types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-%012d", n))
		claim, pv := fullClaim("other.test"), fullPV("other.test")
		claim.Name, claim.UID, claim.Spec.VolumeName = fmt.Sprintf("data-database-%d", n), uid, "pvc-"+string(uid)
		claim.ResourceVersion = fmt.Sprint(100_000 + n)
		claim.Spec.DataSource, claim.Spec.DataSourceRef, claim.DeletionTimestamp, claim.Finalizers = nil, nil, nil, nil
		pv.Name, pv.UID, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "pvc-"+string(uid), types.UID(strings.Clone(string(uid))), claim.Name, uid
		pv.ResourceVersion = fmt.Sprint(200_000 + n)
		_ = claims.Add(mustTrim(t, trim.claim, claim))
		_ = pvs.Add(mustTrim(t, trim.pv, pv))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	if each := used / (2 * count); each > limit {
		t.Errorf("%d bytes an object, want at most %d", each, limit)
	}
	runtime.KeepAlive(claims)
	runtime.KeepAlive(pvs)
	runtime.KeepAlive(trim)
}

// An informer that lists anew has each object trimmed twice. The second time nothing is written that objects share and
// handlers read meanwhile; the race detector watches.
func TestTrimmingAgainWritesNothingShared(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(testDriver, "")
	trimmed := func(object any) any {
		again, err := trim.pv(object)
		if err != nil {
			t.Error(err)
		}
		return again
	}
	read, relisted := trimmed(fullPV(testDriver)).(*corev1.PersistentVolume), trimmed(fullPV(testDriver))
	if len(read.Annotations) == 0 {
		t.Fatal("there is no annotation to share")
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		if read.Annotations[wellknown.AnnProvisionedBy] == "" {
			t.Error("the annotation is gone")
		}
	})
	trimmed(relisted)
	reader.Wait()
}
