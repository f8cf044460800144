package volume

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func TestOwned(t *testing.T) {
	t.Parallel()
	const driver, inTree = "csi.example.com", "kubernetes.io/example"
	const by, to = "pv.kubernetes.io/provisioned-by", "pv.kubernetes.io/migrated-to"
	for name, tc := range map[string]struct {
		annotations map[string]string
		csiDriver   string // "" = no CSI source
		noInTree    bool
		want        bool
	}{
		"provisioned by the driver":                  {annotations: map[string]string{by: driver}, csiDriver: driver, want: true},
		"provisioned by the plugin":                  {annotations: map[string]string{by: inTree}, want: true},
		"provisioned by the plugin and migrated":     {annotations: map[string]string{by: inTree, to: driver}, want: true},
		"provisioned by the plugin we do not serve":  {annotations: map[string]string{by: inTree}, noInTree: true},
		"provisioned by another, migrated to us":     {annotations: map[string]string{by: "other", to: driver}, want: true},
		"provisioned by another, served by us":       {annotations: map[string]string{by: "other"}, csiDriver: driver},
		"an empty provisioner is another's":          {annotations: map[string]string{by: ""}, csiDriver: driver},
		"provisioned by us, served by another":       {annotations: map[string]string{by: driver}, csiDriver: "other"},
		"by the plugin, migrated, served by another": {annotations: map[string]string{by: inTree, to: driver}, csiDriver: "other"},
		"static, served by us":                       {csiDriver: driver, want: true},
		"static, with the plugin's name as driver":   {csiDriver: inTree, want: true},
		"static, served by another":                  {csiDriver: "other"},
		"static, served by another, migrated to us":  {annotations: map[string]string{to: driver}, csiDriver: "other"},
		"static in-tree, migrated to us":             {annotations: map[string]string{to: driver}, want: true},
		"static in-tree, migrated to another":        {annotations: map[string]string{to: "other"}},
		"static in-tree":                             {},
		"no plugin and no annotation is not a match": {noInTree: true},
		"no plugin and an empty migration":           {annotations: map[string]string{by: "", to: ""}, noInTree: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}
			if tc.csiDriver != "" {
				pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: tc.csiDriver}
			}
			plugin := inTree
			if tc.noInTree {
				plugin = ""
			}
			if got := Owned(pv, driver, plugin); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestLeavesVolume(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy                 corev1.PersistentVolumeReclaimPolicy
		terminating, finalizer bool
		want                   bool
	}{
		"alive":                              {corev1.PersistentVolumeReclaimDelete, false, true, false},
		"alive, without our finalizer":       {corev1.PersistentVolumeReclaimDelete, false, false, false},
		"alive, to be kept":                  {corev1.PersistentVolumeReclaimRetain, false, true, false},
		"terminating":                        {corev1.PersistentVolumeReclaimDelete, true, true, false},
		"terminating, without our finalizer": {corev1.PersistentVolumeReclaimDelete, true, false, true},
		"terminating, to be kept":            {corev1.PersistentVolumeReclaimRetain, true, true, true},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: tc.policy}}
		if tc.terminating {
			pv.DeletionTimestamp = &metav1.Time{}
		}
		if tc.finalizer {
			pv.Finalizers = []string{"external-provisioner.volume.kubernetes.io/finalizer"}
		}
		if got := LeavesVolume(pv); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

// Every combination of policy, phase, terminating and finalizer, against the rules written down as a list:
// those that are not listed keep the finalizer as it is and the volume.
func TestUpkeepAndDeletion(t *testing.T) {
	t.Parallel()
	type state struct {
		policy                 corev1.PersistentVolumeReclaimPolicy
		phase                  corev1.PersistentVolumePhase
		terminating, finalizer bool
	}
	const (
		del                                          = corev1.PersistentVolumeReclaimDelete
		pending, available, bound, released, failedP = corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed
	)
	changes := map[state]FinalizerChange{
		{del, bound, false, false}:   AddFinalizer,
		{del, pending, true, true}:   RemoveFinalizer,
		{del, available, true, true}: RemoveFinalizer,
		{del, "", true, true}:        RemoveFinalizer,
	}
	deleted := map[state]bool{
		{del, released, false, false}: true,
		{del, released, false, true}:  true,
		{del, released, true, true}:   true,
		{del, failedP, true, true}:    true,
	}
	for _, policy := range []corev1.PersistentVolumeReclaimPolicy{del, corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle, ""} {
		for _, phase := range []corev1.PersistentVolumePhase{pending, available, bound, released, failedP, ""} {
			for i := range 4 {
				s := state{policy, phase, i&1 != 0, i&2 != 0}
				pv := &corev1.PersistentVolume{
					ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"kubernetes.io/pv-protection"}},
					Spec:       corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: s.policy},
					Status:     corev1.PersistentVolumeStatus{Phase: s.phase},
				}
				if s.terminating {
					pv.DeletionTimestamp = &metav1.Time{}
				}
				if s.finalizer {
					pv.Finalizers = append(pv.Finalizers, "external-provisioner.volume.kubernetes.io/finalizer")
				}
				want := changes[s]
				if policy != del && s.finalizer {
					want = RemoveFinalizer
				}
				if got := FinalizerUpkeep(pv); got != want {
					t.Errorf("FinalizerUpkeep(%+v) = %s, want %s", s, got, want)
				}
				if got := WantsDelete(pv); got != deleted[s] {
					t.Errorf("WantsDelete(%+v) = %v, want %v", s, got, deleted[s])
				}
				if FinalizerUpkeep(pv) == RemoveFinalizer && WantsDelete(pv) {
					t.Errorf("%+v: the finalizer goes before the volume", s)
				}
			}
		}
	}
}

// A PersistentVolume that we have just saved for a claim is Pending until it is bound. When a user deletes it then,
// the finalizer is what keeps its volume from being forgotten.
func TestUpkeepKeepsTheFinalizerOfVolumesMadeForAClaim(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ref  *corev1.ObjectReference
		want FinalizerChange
	}{
		"no claim":                        {want: RemoveFinalizer},
		"reserved by name, never bound":   {ref: &corev1.ObjectReference{Namespace: "team-a", Name: "data"}, want: RemoveFinalizer},
		"made for a claim, not yet bound": {ref: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: testUID}, want: KeepFinalizer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, phase := range []corev1.PersistentVolumePhase{"", corev1.VolumePending, corev1.VolumeAvailable} {
				pv := BuildPV(testInput())
				pv.DeletionTimestamp, pv.Status.Phase, pv.Spec.ClaimRef = &metav1.Time{}, phase, tc.ref
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
				if got := FinalizerUpkeep(pv); got != tc.want {
					t.Errorf("phase %q: got %s, want %s", phase, got, tc.want)
				}
			}
		})
	}
}

func TestDeletionSecret(t *testing.T) {
	t.Parallel()
	const (
		name      = "volume.kubernetes.io/provisioner-deletion-secret-name"
		namespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
		beta      = "volume.beta.kubernetes.io/storage-class"
	)
	class := func(secretName, secretNamespace string) *storagev1.StorageClass {
		return &storagev1.StorageClass{Parameters: map[string]string{
			"csi.storage.k8s.io/secret-name": secretName, "csi.storage.k8s.io/secret-namespace": secretNamespace,
		}}
	}
	claim := &corev1.ObjectReference{Namespace: "team-a", Name: "data"}
	for title, tc := range map[string]struct {
		annotations map[string]string
		className   string
		claim       *corev1.ObjectReference
		class       *storagev1.StorageClass
		wantClass   string
		want        *corev1.SecretReference
		wantNote    string
		wantErr     string
	}{
		"recorded": {
			annotations: map[string]string{name: "s", namespace: "ns"}, className: "fast", class: class("other", "other"),
			want: &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"recorded as none": {
			annotations: map[string]string{name: "", namespace: ""}, className: "fast", class: class("other", "other"), claim: claim,
		},
		"recorded with an empty name":      {annotations: map[string]string{name: "", namespace: "ns"}, className: "fast", class: class("o", "o"), claim: claim},
		"recorded with an empty namespace": {annotations: map[string]string{name: "s", namespace: ""}, className: "fast", class: class("o", "o"), claim: claim},
		"one annotation is not a record": {
			annotations: map[string]string{name: "s"}, className: "fast", class: class("${pvc.name}", "${pvc.namespace}"), claim: claim,
			wantClass: "fast", want: &corev1.SecretReference{Name: "data", Namespace: "team-a"},
		},
		"the other annotation is not a record": {
			annotations: map[string]string{namespace: "ns"}, className: "fast", class: class("${pv.name}", "ns"), claim: claim,
			wantClass: "fast", want: &corev1.SecretReference{Name: "static", Namespace: "ns"},
		},
		"no record and no class":              {class: class("s", "ns"), claim: claim},
		"an empty legacy annotation is none":  {annotations: map[string]string{beta: ""}, className: "fast", claim: claim},
		"the legacy annotation names a class": {annotations: map[string]string{beta: "old"}, className: "fast", claim: claim, wantClass: "old", wantNote: "class"},
		"the class is gone":                   {className: "fast", claim: claim, wantClass: "fast", wantNote: "class"},
		"no claim to resolve for":             {className: "fast", class: class("s", "ns"), wantClass: "fast", wantNote: "claim"},
		"the class names none":                {className: "fast", class: &storagev1.StorageClass{}, claim: claim, wantClass: "fast"},
		"annotations of the claim are gone": {
			className: "fast", class: class("${pvc.annotations['a']}", "ns"), claim: claim, wantClass: "fast", wantErr: "pvc.annotations['a']",
		},
		"half a pair": {
			className: "fast", claim: claim, wantClass: "fast", wantErr: "both must be specified",
			class: &storagev1.StorageClass{Parameters: map[string]string{"csiProvisionerSecretName": "s"}},
		},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			pv := &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "static", Annotations: tc.annotations},
				Spec:       corev1.PersistentVolumeSpec{StorageClassName: tc.className, ClaimRef: tc.claim},
			}
			if got := DeletionClass(pv); got != tc.wantClass {
				t.Errorf("class %q, want %q", got, tc.wantClass)
			}
			got, note, err := DeletionSecret(DeletionSecretInput{PV: pv, Class: tc.class})
			if (err != nil) != (tc.wantErr != "") || err != nil && (!strings.Contains(err.Error(), tc.wantErr) || outcome.Of(err) != outcome.Unchanged) {
				t.Errorf("error %v, want one that mentions %q", err, tc.wantErr)
			}
			if (note != "") != (tc.wantNote != "") || !strings.Contains(note, tc.wantNote) {
				t.Errorf("note %q, want one that mentions %q", note, tc.wantNote)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reference (-want +got):\n%s", diff)
			}
		})
	}
}
