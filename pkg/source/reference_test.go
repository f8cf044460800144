package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

const snapshotGroup = "snapshot.storage.k8s.io"

func local(group *string, kind, name string) *corev1.TypedLocalObjectReference {
	return &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: name}
}

func object(group *string, kind, name string, namespace *string) *corev1.TypedObjectReference {
	return &corev1.TypedObjectReference{APIGroup: group, Kind: kind, Name: name, Namespace: namespace}
}

func claimFrom(source *corev1.TypedLocalObjectReference, ref *corev1.TypedObjectReference) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{DataSource: source, DataSourceRef: ref},
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	group := new(snapshotGroup)
	snapshot := Reference{Kind: Snapshot, Group: snapshotGroup, KindName: "VolumeSnapshot", Namespace: "ns", Name: "s"}
	clone := Reference{Kind: Claim, KindName: "PersistentVolumeClaim", Namespace: "ns", Name: "p"}
	populator := Reference{Kind: Populator, Group: "example.com", KindName: "Fill", Namespace: "ns", Name: "f"}
	in := func(r Reference, namespace string) Reference {
		r.Namespace = namespace
		return r
	}
	for name, tc := range map[string]struct {
		source  *corev1.TypedLocalObjectReference
		ref     *corev1.TypedObjectReference
		gate    bool
		want    Reference
		wantErr []string
		wantKey string
	}{
		"no source":                   {},
		"no source, gate on":          {gate: true},
		"a snapshot":                  {source: local(group, "VolumeSnapshot", "s"), want: snapshot, wantKey: "VolumeSnapshot/ns/s"},
		"a snapshot as reference":     {ref: object(group, "VolumeSnapshot", "s", nil), want: snapshot, wantKey: "VolumeSnapshot/ns/s"},
		"a claim":                     {source: local(nil, "PersistentVolumeClaim", "p"), want: clone, wantKey: "PersistentVolumeClaim/ns/p"},
		"a claim with the group \"\"": {source: local(new(""), "PersistentVolumeClaim", "p"), want: clone, wantKey: "PersistentVolumeClaim/ns/p"},
		"a claim as reference":        {ref: object(nil, "PersistentVolumeClaim", "p", nil), want: clone, wantKey: "PersistentVolumeClaim/ns/p"},
		"a claim of another group is a populator's": {
			ref:  object(new("example.com"), "PersistentVolumeClaim", "p", nil),
			want: Reference{Kind: Populator, Group: "example.com", KindName: "PersistentVolumeClaim", Namespace: "ns", Name: "p"},
		},
		"a populator's object":           {ref: object(new("example.com"), "Fill", "f", nil), want: populator},
		"a populator's object as source": {source: local(new("example.com"), "Fill", "f"), want: populator},
		"a core kind that is no claim":   {source: local(nil, "ConfigMap", "f"), want: Reference{Kind: Populator, KindName: "ConfigMap", Namespace: "ns", Name: "f"}},
		"another spelling is another kind": {
			source: local(group, "volumesnapshot", "s"), want: Reference{Kind: Populator, Group: snapshotGroup, KindName: "volumesnapshot", Namespace: "ns", Name: "s"},
		},
		"the source wins over the reference": {
			source: local(group, "VolumeSnapshot", "s"), ref: object(nil, "PersistentVolumeClaim", "p", new("other")), want: snapshot, wantKey: "VolumeSnapshot/ns/s",
		},
		"an empty namespace is like none, gate off": {
			ref: object(group, "VolumeSnapshot", "s", new("")), want: snapshot, wantKey: "VolumeSnapshot/ns/s",
		},
		"an empty namespace is like none, gate on": {
			ref: object(nil, "PersistentVolumeClaim", "p", new("")), gate: true, want: clone, wantKey: "PersistentVolumeClaim/ns/p",
		},
		"another namespace with the gate": {
			ref: object(group, "VolumeSnapshot", "s", new("other")), gate: true, want: in(snapshot, "other"), wantKey: "VolumeSnapshot/other/s",
		},
		"the claim's own namespace with the gate": {
			ref: object(nil, "PersistentVolumeClaim", "p", new("ns")), gate: true, want: clone, wantKey: "PersistentVolumeClaim/ns/p",
		},
		"another namespace without the gate": {
			ref: object(group, "VolumeSnapshot", "s", new("other")), wantKey: "VolumeSnapshot/other/s",
			wantErr: []string{"dataSourceRef namespace", "CrossNamespaceVolumeDataSource", "disabled"},
		},
		"the claim's own namespace without the gate": {
			ref: object(nil, "PersistentVolumeClaim", "p", new("ns")), wantKey: "PersistentVolumeClaim/ns/p",
			wantErr: []string{"dataSourceRef namespace", "CrossNamespaceVolumeDataSource"},
		},
		"a populator's object elsewhere without the gate": {
			ref: object(new("example.com"), "Fill", "f", new("other")), wantErr: []string{"CrossNamespaceVolumeDataSource"},
		},
		"a populator's object elsewhere with the gate": {
			ref: object(new("example.com"), "Fill", "f", new("other")), gate: true, want: in(populator, "other"),
		},
		"the gate is looked at before the name": {
			ref: object(nil, "PersistentVolumeClaim", "", new("other")), wantErr: []string{"CrossNamespaceVolumeDataSource"},
		},
		"a snapshot without a name":           {source: local(group, "VolumeSnapshot", ""), wantErr: []string{"ns/c", "no name"}},
		"a populator's object without a name": {source: local(new("example.com"), "Fill", ""), wantErr: []string{"ns/c", "no name"}},
		"the name is looked at before the group": {
			source: local(nil, "VolumeSnapshot", ""), wantErr: []string{"no name"},
		},
		"a snapshot of another group": {
			source: local(new("other.example.com"), "VolumeSnapshot", "s"), wantErr: []string{snapshotGroup, "other.example.com"},
		},
		"a snapshot of the group with its version": {
			source: local(new(snapshotGroup+"/v1"), "VolumeSnapshot", "s"), wantErr: []string{snapshotGroup + "/v1"},
		},
		"a snapshot without a group may be meant, so it is protected": {
			source: local(nil, "VolumeSnapshot", "s"), wantErr: []string{snapshotGroup, `got ""`}, wantKey: "VolumeSnapshot/ns/s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := claimFrom(tc.source, tc.ref)
			before := claim.DeepCopy()
			got, err := Of(claim, tc.gate)
			checkError(t, err, outcome.Failed, tc.wantErr)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reference (-want +got):\n%s", diff)
			}
			if got := Key(claim); got != tc.wantKey {
				t.Errorf("key %q, want %q", got, tc.wantKey)
			}
			if diff := cmp.Diff(before, claim); diff != "" {
				t.Errorf("the claim was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// FuzzOf: a reference is whole or there is none, its key leads back to it, and grants are asked for exactly when
// the namespace is another.
func FuzzOf(f *testing.F) {
	f.Add(snapshotGroup, "VolumeSnapshot", "s", "other", true, true)
	f.Add("", "PersistentVolumeClaim", "p", "", false, true)
	f.Add("example.com", "PersistentVolumeClaim", "p", "ns", true, false)
	f.Add("", "", "", "", false, false)
	f.Fuzz(func(t *testing.T, group, kind, name, namespace string, gate, asRef bool) {
		claim := claimFrom(local(&group, kind, name), nil)
		if asRef {
			claim = claimFrom(nil, object(&group, kind, name, &namespace))
		}
		r, err := Of(claim, gate)
		if err != nil {
			if r != (Reference{}) || outcome.Of(err) != outcome.Failed {
				t.Errorf("%+v and outcome %s beside the error %v", r, outcome.Of(err), err)
			}
			return
		}
		if r.Kind == None || r.Name != name || r.KindName != kind || r.Group != group || r.Namespace == "" {
			t.Errorf("%+v is not what the claim says", r)
		}
		if r.NeedsGrant("ns") != (r.Namespace != "ns") || !gate && r.Namespace != "ns" {
			t.Errorf("%+v needs a grant: %v", r, r.NeedsGrant("ns"))
		}
		want := map[Kind]string{Snapshot: SnapshotKey(r.Namespace, name), Claim: ClaimKey(r.Namespace, name)}[r.Kind]
		if got := Key(claim); got != want {
			t.Errorf("key %q, want %q", got, want)
		}
	})
}

func checkError(t *testing.T, err error, wantOutcome outcome.Outcome, want []string) {
	t.Helper()
	if (err != nil) != (want != nil) {
		t.Fatalf("error %v, want one that mentions %q", err, want)
	}
	if err == nil {
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not mention %q", err, text)
		}
	}
	if got := outcome.Of(err); got != wantOutcome {
		t.Errorf("outcome %s, want %s", got, wantOutcome)
	}
}
