package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// accessVariable makes TestSanity run the suite itself, for volumes of that access type.
const accessVariable = "NODE_TEST_SANITY_ACCESS"

// The suite that drivers are judged by, with volumes that are really mounted. It can run only once in a process.
func TestSanity(t *testing.T) { //nolint:tparallel // the suite itself runs alone in its process
	if access := os.Getenv(accessVariable); access != "" {
		runSanity(t, access)
		return
	}
	for _, access := range []string{"mount", "block"} {
		t.Run(access, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSanity$", "-test.v", "-test.count=1") //nolint:gosec // this program
			command.Env = append(os.Environ(), accessVariable+"="+access)
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "Ran ") || strings.Contains(line, "Passed") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

func runSanity(t *testing.T, access string) {
	t.Helper()
	d, dir := serve(t, memdriver.Config{
		Capabilities: memdriver.AllCapabilities(),
		Topology:     map[string]string{zone: "a"},
		MutableKeys:  []string{"iops"},
	})
	cfg := sanity.NewTestConfig()
	cfg.Address = "unix:" + d.Socket()
	cfg.TargetPath = filepath.Join(dir, "mount")
	cfg.StagingPath = filepath.Join(dir, "staging")
	cfg.TestVolumeAccessType = access
	cfg.TestVolumeMutableParameters = map[string]string{"iops": "100"}
	cfg.TestVolumeExpandSize = 2 * cfg.TestVolumeSize
	sanity.Test(t, cfg)
	if t.Failed() {
		return
	}
	if left := d.Volumes(); len(left) != 0 {
		t.Errorf("volumes left by the suite: %v", left)
	}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "ControllerExpandVolume", "CreateSnapshot"} {
		if len(d.Calls(method)) == 0 {
			t.Errorf("the suite made no call of %s", method)
		}
	}
}
