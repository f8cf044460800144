package memdriver_test

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// The suite that drivers are judged by, over the real socket, for all that this driver can do.
func TestSanity(t *testing.T) {
	if count := flag.Lookup("test.count").Value.String(); count != "1" {
		t.Skip("the suite can run only once in a process, -count is " + count)
	}
	driver := memdriver.Serve(t, memdriver.Config{
		Capabilities: memdriver.AllCapabilities(),
		Topology:     map[string]string{"topology.mem.csi/zone": "a"},
		MutableKeys:  []string{"iops"},
	})
	cfg := sanity.NewTestConfig()
	cfg.Address = "unix:" + driver.Socket()
	cfg.TargetPath = filepath.Join(t.TempDir(), "target")
	cfg.StagingPath = filepath.Join(t.TempDir(), "staging")
	cfg.TestVolumeMutableParameters = map[string]string{"iops": "100"}
	sanity.Test(t, cfg)
	if t.Failed() {
		return
	}
	if left := driver.Volumes(); len(left) != 0 {
		t.Errorf("volumes left by the suite: %v", left)
	}
	if len(driver.Calls("CreateVolume")) == 0 || len(driver.Calls("ControllerPublishVolume")) == 0 {
		t.Error("the suite skipped what it was meant to judge")
	}
}
