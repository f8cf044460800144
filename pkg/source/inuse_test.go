package source

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// cloneOf is a claim "ns/<name>" that is cloned from claim "p" of the namespace.
func cloneOf(name, namespace string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	claim := claimFrom(nil, object(nil, "PersistentVolumeClaim", "p", &namespace))
	claim.Name, claim.Status.Phase = name, phase
	return claim
}

func TestInUse(t *testing.T) {
	t.Parallel()
	type claims = []*corev1.PersistentVolumeClaim
	none := func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, nil }
	granted := func(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
		return []*gatewayv1beta1.ReferenceGrant{
			grant(namespace, []from{{Kind: "PersistentVolumeClaim", Namespace: "ns"}}, []to{{Kind: "PersistentVolumeClaim"}}),
		}, nil
	}
	unread := func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, errors.New("not in sync") }

	terminating := cloneOf("going", "ns", corev1.ClaimPending)
	terminating.DeletionTimestamp = &metav1.Time{}
	// The author of a claim can write all of this on it.
	begun := cloneOf("begun", "other", corev1.ClaimPending)
	begun.UID = "u"
	begun.Finalizers = []string{wellknown.FinalizerProvisioningInProgress}
	begun.Annotations = map[string]string{wellknown.AnnProvisioningInProgress: `{"v":1,"uid":"u","driver":"d"}`}
	bound := cloneOf("bound", "other", corev1.ClaimBound)
	itself := claimFrom(local(nil, "PersistentVolumeClaim", "c"), nil)
	snapshotOfItsName := claimFrom(local(new(snapshotGroup), "VolumeSnapshot", "c"), nil)
	namesake := claimFrom(nil, object(nil, "PersistentVolumeClaim", "c", new("other")))

	for name, tc := range map[string]struct {
		claims  claims
		grants  Grants
		want    *corev1.PersistentVolumeClaim
		wantErr string
	}{
		"no claim":                               {},
		"a claim without a source":               {claims: claims{claimFrom(nil, nil)}},
		"a pending claim":                        {claims: claims{cloneOf("c", "ns", corev1.ClaimPending)}, want: cloneOf("c", "ns", corev1.ClaimPending)},
		"a claim whose phase was never written":  {claims: claims{cloneOf("c", "ns", "")}, want: cloneOf("c", "ns", "")},
		"a pending claim that is being deleted":  {claims: claims{terminating}, want: terminating},
		"a bound claim":                          {claims: claims{cloneOf("c", "ns", corev1.ClaimBound)}},
		"a lost claim":                           {claims: claims{cloneOf("c", "ns", corev1.ClaimLost)}},
		"a pending claim after a bound one":      {claims: claims{cloneOf("b", "ns", corev1.ClaimBound), cloneOf("c", "ns", "")}, want: cloneOf("c", "ns", "")},
		"a claim that names itself":              {claims: claims{itself}},
		"a claim with the name of its snapshot":  {claims: claims{snapshotOfItsName}, want: snapshotOfItsName},
		"a claim with the name of its source":    {claims: claims{namesake}, grants: granted, want: namesake},
		"own namespace, grants cannot be read":   {claims: claims{cloneOf("c", "ns", "")}, grants: unread, want: cloneOf("c", "ns", "")},
		"other namespace, granted":               {claims: claims{cloneOf("c", "other", "")}, grants: granted, want: cloneOf("c", "other", "")},
		"other namespace, not granted":           {claims: claims{cloneOf("c", "other", "")}, grants: none},
		"other namespace, the gate is off":       {claims: claims{cloneOf("c", "other", "")}},
		"other namespace, marked, not granted":   {claims: claims{begun}, grants: none},
		"other namespace, marked, gate off":      {claims: claims{begun}},
		"other namespace, bound, granted":        {claims: claims{bound}, grants: granted},
		"other namespace, bound, cannot be read": {claims: claims{bound}, grants: unread},
		"other namespace, cannot be read":        {claims: claims{cloneOf("c", "other", "")}, grants: unread, wantErr: "claim ns/c may be using PersistentVolumeClaim other/p: not in sync"},
		"one cannot be read, a later one keeps it": {
			claims: claims{cloneOf("c", "other", ""), cloneOf("d", "ns", "")}, grants: unread, want: cloneOf("d", "ns", ""),
		},
		"one cannot be read, a later one does not": {
			claims: claims{cloneOf("c", "other", ""), cloneOf("d", "ns", corev1.ClaimBound)}, grants: unread, wantErr: "claim ns/c",
		},
		"two cannot be read": {
			claims: claims{cloneOf("c", "other", ""), cloneOf("d", "other", "")}, grants: unread, wantErr: "claim ns/c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := InUse(tc.claims, tc.grants)
			if (got == nil) != (tc.want == nil) || got != nil && got.Name != tc.want.Name {
				t.Errorf("kept by %v, want %v", got, tc.want)
			}
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// The grants of the source's namespace decide, not those of the claim's.
func TestInUseAsksForTheGrantsOfTheSource(t *testing.T) {
	t.Parallel()
	var asked []string
	_, err := InUse([]*corev1.PersistentVolumeClaim{cloneOf("c", "other", "")}, func(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
		asked = append(asked, namespace)
		return nil, nil
	})
	if err != nil || strings.Join(asked, " ") != "other" {
		t.Errorf("asked for the grants of %q, error %v", asked, err)
	}
}
