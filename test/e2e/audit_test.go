package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/audit"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// The audit runs with the rights that are shipped for explain, and with the arguments of the sidecar.
func TestAuditFindsWhatHasNoCounterpart(t *testing.T) {
	t.Parallel()
	s, o := explainStage(t, explainCase{origin: true})
	o.Kubeconfig = limitedAccount(t, s.World, shippedRights(t, explainRights))
	socket := "--csi-address=" + s.Driver.Socket()
	audited := func() audit.Report {
		code, stdout, stderr := runCommand(t, o, "audit", socket, "-o", "json")
		var report audit.Report
		if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
		}
		return report
	}
	want := audit.Report{Driver: s.Driver.Name(), Volumes: 1, PersistentVolumes: 1, Unaccounted: []audit.Volume{}, Missing: []audit.PersistentVolume{}}
	if diff := cmp.Diff(want, audited()); diff != "" {
		t.Errorf("one volume with its PersistentVolume (-want +got):\n%s", diff)
	}

	d := must[*driver.Driver](t)(driver.Connect(t.Context(), driver.Config{Address: s.Driver.Socket(), Timeout: time.Minute}))
	defer d.Close()
	// The drivers of all tests call their volumes vol-0001 and so on, and a PersistentVolume of any driver accounts for a
	// volume: the number of this one is higher than that of any other test.
	var leaked *csi.Volume
	for n := range 1000 {
		if leaked != nil {
			if err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: leaked.GetVolumeId()}); err != nil {
				t.Fatal(err)
			}
		}
		leaked = must[*csi.CreateVolumeResponse](t)(d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: fmt.Sprintf("leaked-%d", n), CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}, VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
		})).GetVolume()
	}
	_, pv := s.Bound(t, origin)
	if err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle}); err != nil {
		t.Fatal(err)
	}
	want.Unaccounted = []audit.Volume{{ID: leaked.GetVolumeId(), CapacityBytes: 1 << 30}}
	want.Missing = []audit.PersistentVolume{{Name: pv.Name, VolumeID: pv.Spec.CSI.VolumeHandle, Phase: corev1.VolumeBound, Claim: s.Namespace + "/" + origin}}
	if diff := cmp.Diff(want, audited()); diff != "" {
		t.Errorf("a leaked volume and a lost one (-want +got):\n%s", diff)
	}
	code, stdout, stderr := runCommand(t, o, "audit", socket)
	for _, part := range []string{leaked.GetVolumeId(), "1Gi", pv.Name, "may serve several clusters", "Nothing was changed."} {
		if code != 0 || !strings.Contains(stdout, part) {
			t.Errorf("exit code %d, the table lacks %q: %s%s", code, part, stdout, stderr)
		}
	}
	if got := s.Driver.Volumes(); len(got) != 1 || got[0].ID != leaked.GetVolumeId() {
		t.Errorf("the audit changed the volumes: %v", got)
	}
}

func TestAuditNeedsListVolumes(t *testing.T) {
	t.Parallel()
	s, o := explainStage(t, explainCase{driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}}})
	code, stdout, stderr := runCommand(t, o, "audit", "--csi-address="+s.Driver.Socket())
	if code != 1 || stdout != "" || !strings.Contains(stderr, "lacks the capability LIST_VOLUMES") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
