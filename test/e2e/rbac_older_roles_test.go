package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// patchRule is what a role lacks that cannot change the finalizer of a PersistentVolume.
const patchRule = `add the rule {apiGroups: [""], resources: [persistentvolumes], verbs: [patch]}`

// Roles for releases before v5.0 of external-provisioner grant no patch on PersistentVolumes, and some of them update.
// With each of them volumes are made and deleted, once, and a stop waits for nothing.
func TestRolesOfOlderReleases(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		verbs string // to change persistentvolumes
		// finalizer says that new PersistentVolumes have ours, and that it can be removed.
		finalizer bool
		says      string
	}{
		"patch":   {verbs: "patch", finalizer: true},
		"update":  {verbs: "update", finalizer: true, says: "are changed with the verb update"},
		"neither": {says: "new ones are created without"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plays["base"]
			granted, _ := shippedRights(t, p.rights...).without(func(right deploy.Right) bool {
				return right.Resource == "persistentvolumes" && right.Verb == "patch"
			})
			for verb := range strings.FieldsSeq(tc.verbs) {
				granted.cluster = append(granted.cluster, deploy.Right{Resource: "persistentvolumes", Verb: verb})
			}
			s := openStage(t, p, granted)
			s.works("data")
			_, pv := s.Bound(t, "data")
			if got := slices.Contains(pv.Finalizers, wellknown.FinalizerPV); got != tc.finalizer {
				t.Errorf("the PersistentVolume has the finalizers %v", pv.Finalizers)
			}
			s.DeleteClaim(t, "data")
			s.Empty(t)
			s.leaveBehind(tc.finalizer)
			var ids []string
			for _, call := range s.Driver.Calls("DeleteVolume") {
				ids = append(ids, call.Key)
			}
			if slices.Sort(ids); len(ids) != 2 || ids[0] == ids[1] {
				t.Errorf("calls of DeleteVolume for %q, want one for each of two volumes", ids)
			}
			s.says(tc.says)
			begin := time.Now()
			s.sidecar.Terminate()
			if code := s.sidecar.Exits(t, soon); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			if took := time.Since(begin); took > 5*time.Second { // a stop that waits takes 20 s
				t.Errorf("the stop took %s", took)
			}
		})
	}
}

// leaveBehind makes a PersistentVolume with our finalizer whose claim is gone. Its volume is deleted. It goes as well, or
// it stays with one event that names the rule.
func (s *stage) leaveBehind(goes bool) {
	s.t.Helper()
	pvs := s.Client.CoreV1().PersistentVolumes()
	pv := fixture.PV(s.Namespace).ProvisionedBy(s.Driver.Name()).BoundTo(fixture.Claim("gone").Namespace(s.Namespace).UID("gone").Obj()).Obj()
	must[*corev1.PersistentVolume](s.t)(pvs.Create(s.t.Context(), pv, metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error {
		live, err := pvs.Get(ctx, pv.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		live.Finalizers = nil
		_, err = pvs.Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if goes {
		s.Empty(s.t)
		return
	}
	sidecar.Eventually(s.t, "the PersistentVolume has an event with the rule", func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, event := range events.Items {
			if event.InvolvedObject.Name == pv.Name && event.Reason == "VolumeFailedDelete" {
				if event.Count > 1 || !strings.Contains(event.Message, patchRule) {
					s.t.Errorf("event %d times: %s", event.Count, event.Message)
				}
				return true, nil
			}
		}
		return false, nil
	})
}
