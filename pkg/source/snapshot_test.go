package source

import (
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func sized(claim *corev1.PersistentVolumeClaim, size string) *corev1.PersistentVolumeClaim {
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	return claim
}

// goodSnapshot returns facts that pass each check, with nothing left out that a check looks at.
func goodSnapshot() SnapshotFacts {
	claim := sized(claimFrom(local(new(snapshotGroup), "VolumeSnapshot", "s"), nil), "2Gi")
	claim.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
	return SnapshotFacts{
		Claim: claim, ClassName: "fast", DriverName: "csi.example.com",
		Source: Reference{Kind: Snapshot, Group: snapshotGroup, KindName: "VolumeSnapshot", Namespace: "ns", Name: "s"},
		Snapshot: &snapv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "su"},
			Status: &snapv1.VolumeSnapshotStatus{
				BoundVolumeSnapshotContentName: new("content"), ReadyToUse: new(true), RestoreSize: new(resource.MustParse("1Gi")),
			},
		},
		Content: &snapv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "content"},
			Spec: snapv1.VolumeSnapshotContentSpec{
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "su"},
				Driver:            "csi.example.com",
				SourceVolumeMode:  new(corev1.PersistentVolumeFilesystem),
			},
			Status: &snapv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle")},
		},
		PreventModeConversion: true,
	}
}

// failure spoils the facts for one check, and leaves alone what earlier checks look at.
type failure[F any] struct {
	check string
	spoil func(f *F)
	want  []string
}

// In the order of the checks.
var snapshotFailures = []failure[SnapshotFacts]{
	{"the snapshot exists", func(f *SnapshotFacts) { f.Snapshot = nil }, []string{"snapshot ns/s", "not found"}},
	{"the snapshot is kept", func(f *SnapshotFacts) { f.Snapshot.DeletionTimestamp = &metav1.Time{} }, []string{"snapshot s", "being deleted"}},
	{"the snapshot is bound", func(f *SnapshotFacts) { f.Snapshot.Status = nil }, []string{"snapshot s not bound"}},
	{"the content exists", func(f *SnapshotFacts) { f.Content = nil }, []string{"content", "snapshot s", "not found"}},
	{"the content is bound to the snapshot", func(f *SnapshotFacts) { f.Content.Spec.VolumeSnapshotRef.UID = "x" }, []string{"snapshotcontent content", "snapshot s", "bound to a different snapshot"}},
	{"the content is of the driver", func(f *SnapshotFacts) { f.Content.Spec.Driver = "other" }, []string{"snapshotcontent content", "snapshot s", "fast", "not handled by", "csi.example.com", "other"}},
	{"the snapshot is ready", func(f *SnapshotFacts) { f.Snapshot.Status.ReadyToUse = nil }, []string{"snapshot s is not Ready"}},
	{"there is a handle", func(f *SnapshotFacts) { f.Content.Status = nil }, []string{"snapshot handle", "not available"}},
	{"a size is asked for", func(f *SnapshotFacts) { f.Claim.Spec.Resources.Requests = nil }, []string{"capacity", "ns/c"}},
	{"the size is enough", func(f *SnapshotFacts) { sized(f.Claim, "1") }, []string{"1 ", "1073741824", "snapshot s"}},
	{"the mode is the same", func(f *SnapshotFacts) { f.Claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, []string{"modifies the mode of the source volume but does not have permission to do so", "ns/c"}},
}

// Each check's failing fact with all others fine, and then together with those of later checks, in every pair and
// all at once: what is shown is the first.
func TestSnapshotChecksInOrder(t *testing.T) {
	t.Parallel()
	if len(snapshotFailures) != len(snapshotChecks) {
		t.Fatalf("%d failures for %d checks", len(snapshotFailures), len(snapshotChecks))
	}
	walk(t, "VolumeSnapshot ns/s", snapshotFailures, goodSnapshot, func(f SnapshotFacts) error {
		_, err := CheckSnapshot(f)
		return err
	})
}

// walk runs the failures alone, in pairs, and from each on all together. Each error mentions source.
func walk[F any](t *testing.T, source string, failures []failure[F], good func() F, run func(F) error) {
	t.Helper()
	if err := run(good()); err != nil {
		t.Fatalf("the good facts fail: %v", err)
	}
	for i, first := range failures {
		alone := good()
		first.spoil(&alone)
		err := run(alone)
		checkError(t, err, outcome.Unchanged, append([]string{source}, first.want...))
		for j := i + 1; j < len(failures); j++ {
			// The later one first: the first may take away what the later spoils.
			pair := good()
			failures[j].spoil(&pair)
			first.spoil(&pair)
			checkSame(t, fmt.Sprintf("%s, and %s", first.check, failures[j].check), run(pair), first.want)
		}
		all := good()
		for j := len(failures) - 1; j >= i; j-- {
			failures[j].spoil(&all)
		}
		checkSame(t, first.check+", and all later ones", run(all), first.want)
	}
}

func checkSame(t *testing.T, what string, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error", what)
	}
	checkError(t, err, outcome.Unchanged, want)
}

func TestCheckSnapshot(t *testing.T) {
	t.Parallel()
	const permission = "modifies the mode of the source volume but does not have permission to do so"
	const annotation = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	converted := func(f *SnapshotFacts, value string) {
		f.Content.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock)
		f.Content.Annotations = map[string]string{annotation: value}
	}
	for name, tc := range map[string]struct {
		facts   func(f *SnapshotFacts)
		want    int64 // the size to ask for; 0 = 2Gi
		wantErr []string
	}{
		"all is well": {},
		"why the snapshot could not be read": {
			facts:   func(f *SnapshotFacts) { f.Snapshot, f.ReadErr = nil, errors.New("forbidden") },
			wantErr: []string{"snapshot ns/s", "forbidden"},
		},
		"why the content could not be read": {
			facts:   func(f *SnapshotFacts) { f.Content, f.ReadErr = nil, errors.New("forbidden") },
			wantErr: []string{"snapshotcontent content", "snapshot s", "forbidden"},
		},
		"a failed read of the content is not shown before the snapshot's own failure": {
			facts: func(f *SnapshotFacts) {
				f.Content, f.ReadErr, f.Snapshot.DeletionTimestamp = nil, errors.New("forbidden"), &metav1.Time{}
			},
			wantErr: []string{"being deleted"},
		},
		"a terminating snapshot with our finalizer": {
			facts: func(f *SnapshotFacts) {
				f.Snapshot.DeletionTimestamp = &metav1.Time{}
				f.Snapshot.Finalizers = []string{"other", "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"}
			},
		},
		"a terminating snapshot with other finalizers": {
			facts: func(f *SnapshotFacts) {
				f.Snapshot.DeletionTimestamp = &metav1.Time{}
				f.Snapshot.Finalizers = []string{"other", "provisioner.storage.kubernetes.io/cloning-protection"}
			},
			wantErr: []string{"snapshot s", "being deleted"},
		},
		"no bound content":                {facts: func(f *SnapshotFacts) { f.Snapshot.Status.BoundVolumeSnapshotContentName = nil }, wantErr: []string{"not bound"}},
		"a content for another namespace": {facts: func(f *SnapshotFacts) { f.Content.Spec.VolumeSnapshotRef.Namespace = "x" }, wantErr: []string{"different snapshot"}},
		"a content for another name":      {facts: func(f *SnapshotFacts) { f.Content.Spec.VolumeSnapshotRef.Name = "x" }, wantErr: []string{"different snapshot"}},
		"not ready":                       {facts: func(f *SnapshotFacts) { f.Snapshot.Status.ReadyToUse = new(false) }, wantErr: []string{"not Ready"}},
		"no handle":                       {facts: func(f *SnapshotFacts) { f.Content.Status.SnapshotHandle = nil }, wantErr: []string{"handle"}},
		"an empty handle":                 {facts: func(f *SnapshotFacts) { f.Content.Status.SnapshotHandle = new("") }, wantErr: []string{"handle"}},
		"exactly the size":                {facts: func(f *SnapshotFacts) { sized(f.Claim, "1Gi") }, want: 1 << 30},
		"one byte short":                  {facts: func(f *SnapshotFacts) { sized(f.Claim, "1073741823") }, wantErr: []string{"1073741823", "1073741824"}},
		"half a byte is rounded up":       {facts: func(f *SnapshotFacts) { sized(f.Claim, "1073741823500m") }, want: 1 << 30},
		"a size of 0 is always enough": {facts: func(f *SnapshotFacts) {
			f.Snapshot.Status.RestoreSize = new(resource.MustParse("0"))
			sized(f.Claim, "1")
		}, want: 1},
		"an unknown size needs no request": {
			facts: func(f *SnapshotFacts) { f.Snapshot.Status.RestoreSize, f.Claim.Spec.Resources.Requests = nil, nil }, want: -1,
		},
		"a size that no int64 holds is not 0": {
			facts: func(f *SnapshotFacts) { f.Snapshot.Status.RestoreSize = new(resource.MustParse("1e30")) }, wantErr: []string{"9223372036854775807"},
		},
		"growing to the source":          {facts: func(f *SnapshotFacts) { f.GrowToSourceSize = true; sized(f.Claim, "1Mi") }, want: 1 << 30},
		"growing never makes it smaller": {facts: func(f *SnapshotFacts) { f.GrowToSourceSize = true }},
		"growing to an unknown size":     {facts: func(f *SnapshotFacts) { f.GrowToSourceSize, f.Snapshot.Status.RestoreSize = true, nil }},
		"growing needs a request too": {
			facts: func(f *SnapshotFacts) { f.GrowToSourceSize, f.Claim.Spec.Resources.Requests = true, nil }, wantErr: []string{"capacity", "ns/c"},
		},
		"another mode, nobody allows it": {
			facts:   func(f *SnapshotFacts) { f.Content.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock) },
			wantErr: []string{permission, "ns/c", annotation, "not present"},
		},
		"another mode, not a boolean": {facts: func(f *SnapshotFacts) { converted(f, "yes") }, wantErr: []string{permission, "ns/c", annotation, "yes"}},
		"another mode, empty":         {facts: func(f *SnapshotFacts) { converted(f, "") }, wantErr: []string{permission, "ns/c", annotation}},
		"another mode, refused":       {facts: func(f *SnapshotFacts) { converted(f, "false") }, wantErr: []string{permission, "ns/c", annotation, "false"}},
		"another mode, refused as 0":  {facts: func(f *SnapshotFacts) { converted(f, "0") }, wantErr: []string{permission}},
		"another mode, true":          {facts: func(f *SnapshotFacts) { converted(f, "true") }},
		"another mode, 1":             {facts: func(f *SnapshotFacts) { converted(f, "1") }},
		"another mode, t":             {facts: func(f *SnapshotFacts) { converted(f, "t") }},
		"another mode, T":             {facts: func(f *SnapshotFacts) { converted(f, "T") }},
		"another mode, True":          {facts: func(f *SnapshotFacts) { converted(f, "True") }},
		"another mode, TRUE":          {facts: func(f *SnapshotFacts) { converted(f, "TRUE") }},
		"another mode, tRUE":          {facts: func(f *SnapshotFacts) { converted(f, "tRUE") }, wantErr: []string{permission}},
		"leave on the snapshot is none": {
			facts: func(f *SnapshotFacts) {
				f.Content.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock)
				f.Snapshot.Annotations = map[string]string{annotation: "true"}
			},
			wantErr: []string{permission},
		},
		"another mode, not prevented": {facts: func(f *SnapshotFacts) { converted(f, "false"); f.PreventModeConversion = false }},
		"the source's mode is unknown": {facts: func(f *SnapshotFacts) {
			f.Content.Spec.SourceVolumeMode, f.Claim.Spec.VolumeMode = nil, new(corev1.PersistentVolumeBlock)
		}},
		"the claim has no mode": {facts: func(f *SnapshotFacts) { converted(f, "false"); f.Claim.Spec.VolumeMode = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, before := goodSnapshot(), goodSnapshot()
			if tc.facts != nil {
				tc.facts(&f)
				tc.facts(&before)
			}
			got, err := CheckSnapshot(f)
			checkError(t, err, outcome.Unchanged, tc.wantErr)
			var want Content
			if tc.wantErr == nil {
				want = Content{MinBytes: 2 << 30, VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
					Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "handle"},
				}}}
				if tc.want != 0 {
					want.MinBytes = max(tc.want, 0)
				}
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			before.ReadErr, f.ReadErr = nil, nil
			if diff := cmp.Diff(before, f); diff != "" {
				t.Errorf("the facts were changed (-before +after):\n%s", diff)
			}
		})
	}
}

// The causes of a failed read stay within reach of errors.Is.
func TestReadErrorsAreWrapped(t *testing.T) {
	t.Parallel()
	cause := errors.New("the API server is away")
	snapshot, content := goodSnapshot(), goodSnapshot()
	snapshot.Snapshot, snapshot.ReadErr = nil, cause
	content.Content, content.ReadErr = nil, cause
	for _, f := range []SnapshotFacts{snapshot, content} {
		if _, err := CheckSnapshot(f); !errors.Is(err, cause) {
			t.Errorf("error %v does not wrap its cause", err)
		}
	}
	noSource, noVolume := goodClone(), goodClone()
	noSource.Source, noSource.ReadErr = nil, cause
	noVolume.SourcePV, noVolume.ReadErr = nil, cause
	for _, f := range []CloneFacts{noSource, noVolume} {
		if _, err := CheckClone(f); !errors.Is(err, cause) {
			t.Errorf("error %v does not wrap its cause", err)
		}
	}
}
