package source

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// goodClone returns facts that pass each check. The source asked for 1Gi, and its volume has 3Gi.
func goodClone() CloneFacts {
	claim := sized(claimFrom(nil, object(nil, "PersistentVolumeClaim", "p", new("other"))), "2Gi")
	claim.Spec.StorageClassName = new("fast")
	source := sized(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "p", UID: "pu"},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("slow"), VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}, "1Gi")
	return CloneFacts{
		Claim: claim, Source: source, DriverName: "csi.example.com",
		Reference: Reference{Kind: Claim, KindName: "PersistentVolumeClaim", Namespace: "other", Name: "p"},
		SourcePV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")},
				ClaimRef:               &corev1.ObjectReference{Namespace: "other", Name: "p", UID: "pu"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "handle"}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
	}
}

// The words that all failures around the source's volume have always had.
const unusableWords = "claim in dataSource not bound or invalid"

// In the order of the checks.
var cloneFailures = []failure[CloneFacts]{
	{"the source exists", func(f *CloneFacts) { f.Source = nil }, []string{"PVC p", "namespace other", "not found"}},
	{"the source is bound", func(f *CloneFacts) { f.Source.Status.Phase = corev1.ClaimPending }, []string{"p must have a status of Bound", "Pending"}},
	{"the source is kept", func(f *CloneFacts) { f.Source.DeletionTimestamp = &metav1.Time{} }, []string{"p is currently being deleted"}},
	{"the source has a class", func(f *CloneFacts) { f.Source.Spec.StorageClassName = nil }, []string{"source PVC (p) storageclass"}},
	{"the claim has a class", func(f *CloneFacts) { f.Claim.Spec.StorageClassName = nil }, []string{"requested PVC (c) storageclass"}},
	{"the size is enough", func(f *CloneFacts) { sized(f.Claim, "5") }, []string{"requested 5 ", "1073741824"}},
	{"the source has a volume", func(f *CloneFacts) { f.Source.Spec.VolumeName = "" }, []string{"volume name is empty in source PVC p"}},
	{"the volume exists", func(f *CloneFacts) { f.SourcePV = nil }, []string{unusableWords, "PersistentVolume pv", "not found"}},
	{"the volume is of a CSI driver", func(f *CloneFacts) { f.SourcePV.Spec.CSI = nil }, []string{unusableWords, "pv is not one of a CSI driver"}},
	{"the volume is of the driver", func(f *CloneFacts) { f.SourcePV.Spec.CSI.Driver = "x.example.com" }, []string{unusableWords, `pv is handled by driver "x.example.com"`, `"csi.example.com"`}},
	{"the volume has a claim", func(f *CloneFacts) { f.SourcePV.Spec.ClaimRef = nil }, []string{unusableWords, "pv has no claimRef"}},
	{"the volume is bound to the source", func(f *CloneFacts) { f.SourcePV.Spec.ClaimRef.UID = "x" }, []string{unusableWords, "pv is bound to a different claim"}},
	{"the volume is bound", func(f *CloneFacts) { f.SourcePV.Status.Phase = corev1.VolumeReleased }, []string{unusableWords, `pv is in phase "Released"`}},
	{"the modes are equal", func(f *CloneFacts) { f.Claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, []string{"volume mode Filesystem", "requested volume mode Block"}},
}

func TestCloneChecksInOrder(t *testing.T) {
	t.Parallel()
	if len(cloneFailures) != len(cloneChecks) {
		t.Fatalf("%d failures for %d checks", len(cloneFailures), len(cloneChecks))
	}
	walk(t, "PersistentVolumeClaim other/p", cloneFailures, goodClone, func(f CloneFacts) error {
		_, err := CheckClone(f)
		return err
	})
}

// No two failures of a clone look alike: a user can tell from the event which check it was.
func TestCloneFailuresDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, failure := range cloneFailures {
		f := goodClone()
		failure.spoil(&f)
		_, err := CheckClone(f)
		if other, ok := seen[err.Error()]; ok {
			t.Errorf("%s and %s both say %q", failure.check, other, err)
		}
		seen[err.Error()] = failure.check
	}
}

func TestCheckClone(t *testing.T) {
	t.Parallel()
	terminating := func(f *CloneFacts, finalizer string) {
		f.Source.DeletionTimestamp = &metav1.Time{}
		f.Source.Finalizers = []string{"kubernetes.io/pvc-protection", finalizer}
	}
	const ours = "provisioner.storage.kubernetes.io/cloning-protection"
	for name, tc := range map[string]struct {
		facts   func(f *CloneFacts)
		want    int64 // the size to ask for; 0 = 2Gi
		wantErr []string
	}{
		"another class of the same driver": {},
		"empty class names are names":      {facts: func(f *CloneFacts) { f.Source.Spec.StorageClassName, f.Claim.Spec.StorageClassName = new(""), new("") }},
		"the legacy annotation is no class": {
			facts: func(f *CloneFacts) {
				f.Claim.Spec.StorageClassName = nil
				f.Claim.Annotations = map[string]string{"volume.beta.kubernetes.io/storage-class": "fast"}
			},
			wantErr: []string{"requested PVC (c)"},
		},
		"a source that was lost":          {facts: func(f *CloneFacts) { f.Source.Status.Phase = corev1.ClaimLost }, wantErr: []string{"Bound", "Lost"}},
		"a source without a phase":        {facts: func(f *CloneFacts) { f.Source.Status.Phase = "" }, wantErr: []string{"Bound"}},
		"a terminating source, protected": {facts: func(f *CloneFacts) { terminating(f, ours) }, wantErr: []string{"being deleted"}},
		"a terminating source, protected, the clone being made": {
			facts: func(f *CloneFacts) { terminating(f, ours); f.OutstandingCreate = true },
		},
		"a terminating source, not protected, the clone being made": {
			facts:   func(f *CloneFacts) { terminating(f, "other"); f.OutstandingCreate = true },
			wantErr: []string{"being deleted"},
		},
		"exactly the size": {facts: func(f *CloneFacts) { sized(f.Claim, "1Gi") }, want: 1 << 30},
		"one byte short":   {facts: func(f *CloneFacts) { sized(f.Claim, "1073741823") }, wantErr: []string{"1073741823", "1073741824"}},
		"the size of the source's volume does not count": {facts: func(f *CloneFacts) { f.Source.Status.Capacity = f.SourcePV.Spec.Capacity }},
		"a source without a request":                     {facts: func(f *CloneFacts) { f.Source.Spec.Resources.Requests = nil; sized(f.Claim, "1") }, want: 1},
		"a claim without a request":                      {facts: func(f *CloneFacts) { f.Claim.Spec.Resources.Requests = nil }, wantErr: []string{"requested 0"}},
		"growing to the source's volume":                 {facts: func(f *CloneFacts) { f.GrowToSourceSize = true; sized(f.Claim, "1") }, want: 3 << 30},
		"growing where the request is enough for the source's, but not for its volume": {
			facts: func(f *CloneFacts) { f.GrowToSourceSize = true }, want: 3 << 30,
		},
		"growing never makes it smaller": {facts: func(f *CloneFacts) { f.GrowToSourceSize = true; sized(f.Claim, "7Gi") }, want: 7 << 30},
		"growing to an expansion that the volume does not have yet": {
			facts: func(f *CloneFacts) { f.GrowToSourceSize = true; sized(f.Source, "9Gi"); sized(f.Claim, "1Gi") }, want: 3 << 30,
		},
		"growing to a volume that does not tell": {facts: func(f *CloneFacts) { f.GrowToSourceSize, f.SourcePV.Spec.Capacity = true, nil }},
		"a volume for another namespace":         {facts: func(f *CloneFacts) { f.SourcePV.Spec.ClaimRef.Namespace = "x" }, wantErr: []string{unusableWords, "different claim"}},
		"a volume for another name":              {facts: func(f *CloneFacts) { f.SourcePV.Spec.ClaimRef.Name = "x" }, wantErr: []string{unusableWords, "different claim"}},
		"two raw devices": {
			facts: func(f *CloneFacts) {
				f.Claim.Spec.VolumeMode, f.SourcePV.Spec.VolumeMode = new(corev1.PersistentVolumeBlock), new(corev1.PersistentVolumeBlock)
			},
		},
		"no mode is Filesystem": {facts: func(f *CloneFacts) { f.SourcePV.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem) }},
		"the volume's mode counts, not the source's": {
			facts:   func(f *CloneFacts) { f.SourcePV.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) },
			wantErr: []string{"volume mode Block", "requested volume mode Filesystem"},
		},
		"the source's mode does not count": {facts: func(f *CloneFacts) { f.Source.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, before := goodClone(), goodClone()
			if tc.facts != nil {
				tc.facts(&f)
				tc.facts(&before)
			}
			got, err := CheckClone(f)
			checkError(t, err, outcome.Unchanged, tc.wantErr)
			var want Content
			if tc.wantErr == nil {
				want = Content{MinBytes: 2 << 30, VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
					Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "handle"},
				}}}
				if tc.want != 0 {
					want.MinBytes = tc.want
				}
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, f); diff != "" {
				t.Errorf("the facts were changed (-before +after):\n%s", diff)
			}
		})
	}
}

// FuzzCheckClone spoils any set of facts: there is no panic, and what is shown is the first failure in the order.
func FuzzCheckClone(f *testing.F) {
	f.Add(uint16(0), true, false)
	f.Add(uint16(1<<2), false, true)
	f.Add(uint16(1<<14-1), true, true)
	f.Fuzz(func(t *testing.T, set uint16, outstanding, grow bool) {
		facts := goodClone()
		facts.OutstandingCreate, facts.GrowToSourceSize = outstanding, grow
		var first *failure[CloneFacts]
		for i := len(cloneFailures) - 1; i >= 0; i-- {
			failure := &cloneFailures[i]
			if set&(1<<i) == 0 || grow && failure.check == "the size is enough" {
				continue
			}
			failure.spoil(&facts)
			first = failure
		}
		content, err := CheckClone(facts)
		if first == nil {
			if err != nil || content.VolumeContentSource == nil || content.MinBytes < 2<<30 {
				t.Errorf("%+v, %v; want a source", content, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), first.want[len(first.want)-1]) {
			t.Errorf("error %v, want the one of %q", err, first.check)
		}
	})
}
