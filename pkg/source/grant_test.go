package source

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
)

type (
	from = gatewayv1beta1.ReferenceGrantFrom
	to   = gatewayv1beta1.ReferenceGrantTo
)

func grant(namespace string, froms []from, tos []to) *gatewayv1beta1.ReferenceGrant {
	return &gatewayv1beta1.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "g"},
		Spec:       gatewayv1beta1.ReferenceGrantSpec{From: froms, To: tos},
	}
}

func TestGranted(t *testing.T) {
	t.Parallel()
	claims := []from{{Kind: "PersistentVolumeClaim", Namespace: "ns"}}
	snapshots := []to{{Group: snapshotGroup, Kind: "VolumeSnapshot"}}
	name := func(n string) *gatewayv1beta1.ObjectName { return new(gatewayv1beta1.ObjectName(n)) }
	snapshot := Reference{Kind: Snapshot, Group: snapshotGroup, KindName: "VolumeSnapshot", Namespace: "other", Name: "s"}
	clone := Reference{Kind: Claim, KindName: "PersistentVolumeClaim", Namespace: "other", Name: "p"}
	for title, tc := range map[string]struct {
		source Reference // zero = snapshot
		grants []*gatewayv1beta1.ReferenceGrant
		want   bool
	}{
		"no grant":                 {},
		"all snapshots":            {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, snapshots)}, want: true},
		"this snapshot":            {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Group: snapshotGroup, Kind: "VolumeSnapshot", Name: name("s")}})}, want: true},
		"an empty name is any":     {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Group: snapshotGroup, Kind: "VolumeSnapshot", Name: name("")}})}, want: true},
		"another snapshot":         {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Group: snapshotGroup, Kind: "VolumeSnapshot", Name: name("t")}})}},
		"another kind":             {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Group: snapshotGroup, Kind: "VolumeSnapshotContent"}})}},
		"no group":                 {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Kind: "VolumeSnapshot"}})}},
		"a grant elsewhere":        {grants: []*gatewayv1beta1.ReferenceGrant{grant("ns", claims, snapshots)}},
		"claims of another group":  {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", []from{{Group: "example.com", Kind: "PersistentVolumeClaim", Namespace: "ns"}}, snapshots)}},
		"another kind of user":     {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", []from{{Kind: "Pod", Namespace: "ns"}}, snapshots)}},
		"claims elsewhere":         {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", []from{{Kind: "PersistentVolumeClaim", Namespace: "other"}}, snapshots)}},
		"nobody":                   {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", nil, snapshots)}},
		"nothing":                  {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, nil)}},
		"two grants do not add up": {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, nil), grant("other", nil, snapshots)}},
		"one of several grants":    {grants: []*gatewayv1beta1.ReferenceGrant{grant("other", nil, snapshots), grant("ns", claims, snapshots), grant("other", claims, snapshots)}, want: true},
		"entries are not pairs": {
			grants: []*gatewayv1beta1.ReferenceGrant{grant("other",
				[]from{{Kind: "Pod", Namespace: "ns"}, {Kind: "PersistentVolumeClaim", Namespace: "ns"}},
				[]to{{Group: snapshotGroup, Kind: "VolumeSnapshot"}, {Kind: "Secret"}})},
			want: true,
		},
		"a claim":                      {source: clone, grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Kind: "PersistentVolumeClaim"}})}, want: true},
		"a claim needs an empty group": {source: clone, grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, []to{{Group: "core", Kind: "PersistentVolumeClaim"}})}},
		"a claim is not a snapshot":    {source: clone, grants: []*gatewayv1beta1.ReferenceGrant{grant("other", claims, snapshots)}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			r := tc.source
			if r == (Reference{}) {
				r = snapshot
			}
			if got := Granted(r, "ns", tc.grants); got != tc.want {
				t.Errorf("granted %v, want %v", got, tc.want)
			}
		})
	}
}

func TestOwnNamespaceNeedsNoGrant(t *testing.T) {
	t.Parallel()
	for _, r := range []Reference{{}, {Kind: Claim, KindName: "PersistentVolumeClaim", Namespace: "ns", Name: "p"}} {
		if r.NeedsGrant("ns") {
			t.Errorf("%+v needs a grant", r)
		}
	}
}
